# From a fresh clone, with nothing but Python 3.11 and make:
#   make reproduce   install into .venv, run the quick experiments, say where the report is
#   make test        the same, then the tests
#   make docs        build the site into docs/_build/html (SITE=); warnings are errors
#   make links       check the site's links to other sites (needs the network)
#   make bench       time the tensor core beside other libraries (extra `bench`)
# Another interpreter or folder: make test PYTHON=python3.12 VENV=/somewhere RESULTS=/elsewhere
# One experiment at a time, for less memory or clean timings: make reproduce JOBS=1

PYTHON ?= python3.11
VENV ?= .venv
RESULTS ?= results
JOBS ?= 2
SITE ?= docs/_build/html

.PHONY: install reproduce test docs links bench

install: $(VENV)/installed

# What is compiled on installation is compiled again when it has changed.
COMPILED = hatch_build.py $(wildcard tensorjax/_native/*.cc tensorjax/_native/*.h) \
	tensorjax/_native/level.py tensorjax/_native/calls.map \
	tensorjax/offload/_store/_copies_c.c tensorjax/offload/_store/backends/io_uring.c

$(VENV)/installed: pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[nn,experiments,network,offload,docs,dev]"
	touch $@

reproduce: install
	$(VENV)/bin/python -m experiments run all --quick --jobs $(JOBS) --results $(RESULTS)
	$(VENV)/bin/python -m experiments report --results $(RESULTS)

test: reproduce
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal

docs: install
	$(VENV)/bin/python -m sphinx --fail-on-warning --keep-going --jobs auto -q docs $(SITE)
	@echo "$(SITE)/index.html"

links: install
	$(VENV)/bin/python -m sphinx -b linkcheck --keep-going -q docs $(SITE)

bench: install
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	$(VENV)/bin/python -m experiments run bench/core --results $(RESULTS)
	$(VENV)/bin/python -m experiments report --results $(RESULTS)
