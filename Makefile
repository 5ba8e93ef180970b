# From a fresh clone, with nothing but Python 3.11 and make:
#   make reproduce   install into .venv, run the quick experiments, say where the report is
#   make test        the same, then the tests
# Another interpreter or folder: make test PYTHON=python3.12 VENV=/somewhere RESULTS=/elsewhere

PYTHON ?= python3.11
VENV ?= .venv
RESULTS ?= results

.PHONY: install reproduce test

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[nn,experiments,network,offload,dev]"
	touch $@

reproduce: install
	$(VENV)/bin/python -m experiments run all --quick --results $(RESULTS)
	$(VENV)/bin/python -m experiments report --results $(RESULTS)

test: reproduce
	$(VENV)/bin/python -m pytest -n 2
