"""One of several processes that compute one loss and gradient together; started by a test."""

import argparse
import json

import jax

from tests import tiny_decoder as tiny


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--port", "--processes", "--index", "--rows", "--columns"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--layout", required=True)
    options = parser.parse_args()
    jax.distributed.initialize(
        coordinator_address=f"localhost:{options.port}",
        num_processes=options.processes,
        process_id=options.index,
        initialization_timeout=120,
    )
    from tensorjax import parallel

    config = tiny.Config()
    layout = parallel.layout(options.layout, parallel.mesh(options.rows, options.columns))
    data = (layout.data_spec(),) * 3
    params, *batch = parallel.shard(
        (tiny.init(config), *tiny.data(config, 8)), (tiny.specs(layout), *data), layout.mesh
    )
    step = jax.jit(jax.value_and_grad(tiny.loss(layout, config)), compiler_options=tiny.QUICKLY)
    loss, slopes = step(params, *batch)
    norms = jax.jit(lambda tree: [jax.numpy.linalg.norm(x) for x in jax.tree.leaves(tree)])(slopes)
    local = sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(params))
    found = {"loss": float(loss), "norms": [float(x) for x in norms], "local": local}
    if options.index == 0:
        print(json.dumps(found), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
