"""One of several processes that compute losses and gradients together; started by a test."""

import argparse
import json
from typing import Any

import jax

from tests import tiny_decoder as tiny


def trained(name: str, rows: int, columns: int) -> dict[str, Any]:
    """Loss and norms of the gradient of one layout, and how many parameters lie here."""
    from tensorjax import parallel

    config = tiny.Config()
    layout = parallel.layout(name, parallel.mesh(rows, columns))
    data = (layout.data_spec(),) * 3
    params, *batch = parallel.shard(
        (tiny.init(config), *tiny.data(config, 8)), (tiny.specs(layout), *data), layout.mesh
    )
    step = jax.jit(jax.value_and_grad(tiny.loss(layout, config)), compiler_options=tiny.QUICKLY)
    loss, slopes = step(params, *batch)
    norms = jax.jit(lambda tree: [jax.numpy.linalg.norm(x) for x in jax.tree.leaves(tree)])(slopes)
    local = sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(params))
    return {"loss": float(loss), "norms": [float(x) for x in norms], "local": local}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--port", "--processes", "--index", "--rows", "--columns"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--layouts", nargs="+", required=True)
    options = parser.parse_args()
    jax.distributed.initialize(
        coordinator_address=f"localhost:{options.port}",
        num_processes=options.processes,
        process_id=options.index,
        initialization_timeout=120,
    )
    found = [trained(layout, options.rows, options.columns) for layout in options.layouts]
    if options.index == 0:
        print(json.dumps(found), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
