"""Other packages' tensors: there and back, contracted by their own means."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quimb.tensor as qtn
import tensornetwork as tn

from tensorjax import interop, mera, tt, tucker
from tests.oracles import cores, dense, error, normal, tucker_dense


def build(name, rng):
    match name:
        case "TT":
            return tt.TT(cores(rng, (2, 3, 4), 3, np.complex128))
        case "TT of one mode":
            return tt.TT(cores(rng, (3,), 1, np.float32))
        case "TTMatrix":
            return tt.TTMatrix([normal(rng, (1, 2, 3, 2)), normal(rng, (2, 3, 2, 1))])
        case "Tucker":
            return tucker.Tucker(normal(rng, (2, 3)), [normal(rng, (4, 2)), normal(rng, (5, 3))])
        case "Tucker of a TT":
            core = tt.TT(cores(rng, (2, 3, 2), 2, np.float64))
            return tucker.Tucker(core, [normal(rng, (4, n)) for n in core.shape])
        case "MERA":
            return mera.random(jax.random.key(0), (2,) * 7, 2, dtype=np.complex128)
        case _:
            return mera.random(
                jax.random.key(0), (2,) * 5, 2, boundary="periodic", dtype=np.float32
            )


NAMES = ["TT", "TT of one mode", "TTMatrix", "Tucker", "Tucker of a TT", "MERA", "periodic MERA"]


def full(x):
    if isinstance(x, tucker.Tucker):
        return tucker_dense(x)
    return np.asarray(mera.to_dense(x)) if isinstance(x, mera.MERA) else dense(x)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_there_and_back(rng, name):
    x = build(name, rng)
    plain = interop.to_numpy(x)
    assert all(isinstance(a, np.ndarray | int) for a in jax.tree.leaves(plain))
    back = interop.from_numpy(plain)
    assert jax.tree.structure(back) == jax.tree.structure(x)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(x), strict=True):
        assert a.dtype == b.dtype
        assert (a == b).all()


@pytest.mark.parametrize("backend", ["jax", "numpy"])
@pytest.mark.parametrize("name", NAMES)
def test_nodes_are_contracted_by_their_own_contractors(rng, name, backend):
    x = build(name, rng)
    nodes, edges = interop.to_tensornetwork(x, backend)
    tn.check_connected(nodes)
    back = interop.from_tensornetwork(nodes)
    assert jax.tree.structure(back) == jax.tree.structure(x)
    assert all((a == b).all() for a, b in zip(*map(jax.tree.leaves, (back, x)), strict=True))
    out = tn.contractors.greedy(nodes, output_edge_order=edges).tensor
    assert isinstance(out, jax.Array if backend == "jax" else np.ndarray)
    expected = full(x)
    if isinstance(x, tt.TTMatrix):
        expected = expected.reshape(*x.row_shape, *x.col_shape)
    assert out.shape == expected.shape
    assert error(out, expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("contractor", ["optimal", "branch", "auto"])
def test_every_contractor_serves(rng, contractor):
    x = build("TT", rng)
    nodes, edges = interop.to_tensornetwork(x)
    out = getattr(tn.contractors, contractor)(nodes, output_edge_order=edges).tensor
    assert error(out, dense(x)) <= 1e-13 * np.linalg.norm(dense(x))


def test_a_mera_without_layers_and_lists_of_lists_come_back(rng):
    bare = mera.MERA([], normal(rng, (2, 3)))
    back = interop.from_tensornetwork(interop.to_tensornetwork(bare)[0])
    assert isinstance(back, mera.MERA)
    assert error(back.top, bare.top) == 0
    x = build("Tucker of a TT", rng)
    core, factors = interop.to_numpy(x)
    assert jax.tree.structure(interop.from_numpy([core, factors])) == jax.tree.structure(x)
    with pytest.raises(ValueError, match=r"'layers'.*'disentanglers' and 'isometries'"):
        interop.from_numpy({"layers": [{"isometries": []}], "top": np.ones(2)})


def test_a_chain_of_foreign_nodes_becomes_a_train(rng):
    a, b, c = (tn.Node(normal(rng, s)) for s in ((3, 2), (4, 3, 5), (6, 5)))
    a[0] ^ b[1]
    b[2] ^ c[1]
    x = interop.from_tensornetwork([a, b, c])
    assert (x.shape, x.ranks) == ((2, 4, 6), (1, 3, 5, 1))
    assert error(dense(x), np.einsum("ai,jab,kb->ijk", a.tensor, b.tensor, c.tensor)) <= 1e-13
    with pytest.raises(ValueError, match=r"nodes\[0\]: .*open chain in order"):
        interop.from_tensornetwork([a, c, b])
    left, split, _ = tn.split_node(b, [b[0], b[1]], [b[2]])
    with pytest.raises(ValueError, match=r"nodes\[2\]: expected \(1, 1\) edges.*and 0"):
        interop.from_tensornetwork([a, left, split, c])


@pytest.mark.parametrize("name", ["TT", "TT of one mode", "TTMatrix"])
def test_quimb_there_and_back(rng, name):
    x = build(name, rng)
    other = interop.to_quimb(x)
    expected = dense(x)
    if isinstance(x, tt.TTMatrix):
        assert error(other.to_dense(), expected) <= 1e-13
    else:
        assert error(other.to_dense().reshape(x.shape), expected) <= 1e-6
    back = interop.from_quimb(other)
    assert all((a == b).all() for a, b in zip(x.cores, back.cores, strict=True))


def test_quimb_states_of_any_layout_and_missing_bonds():
    state = qtn.MPS_rand_state(5, 3, phys_dim=2, seed=0)
    state.right_canonize()
    t = interop.from_quimb(state)
    assert error(dense(t).ravel(), state.to_dense().ravel()) <= 1e-13
    product = qtn.MPS_computational_state("0110")
    assert interop.from_quimb(product).ranks == (1,) * 5
    hamiltonian = qtn.MPO_ham_heis(4)
    assert error(dense(interop.from_quimb(hamiltonian)), hamiltonian.to_dense()) <= 1e-13
    with pytest.raises(ValueError, match="ring"):
        interop.from_quimb(qtn.MPS_rand_state(4, 2, cyclic=True, seed=0))


def test_a_missing_package_is_named(monkeypatch):
    x = tt.ones((2, 3))
    for name, call in (
        ("tensornetwork", lambda: interop.to_tensornetwork(x)),
        ("tensornetwork", lambda: interop.from_tensornetwork([])),
        ("quimb", lambda: interop.to_quimb(x)),
        ("quimb", lambda: interop.from_quimb(x)),
    ):
        with monkeypatch.context() as patch:
            for module in [m for m in sys.modules if m.partition(".")[0] == name]:
                patch.delitem(sys.modules, module)
            patch.setitem(sys.modules, name, None)
            with pytest.raises(ModuleNotFoundError, match=rf"needs the package '{name}.*pip inst"):
                call()


BATCH = jax.vmap(lambda c: tt.TT([c]))(jnp.ones((3, 1, 2, 1)))


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (TypeError, "x: expected a TT.*ndarray", lambda: interop.to_numpy(np.ones(2))),
        (ValueError, "x: .*batch", lambda: interop.to_numpy(BATCH)),
        (TypeError, "x: .*traced", lambda: jax.jit(interop.to_numpy)(tt.ones((2,)))),
        (TypeError, "data: .*ndarray", lambda: interop.from_numpy(np.ones(2))),
        (TypeError, "data: ", lambda: interop.from_numpy([np.ones(2)])),
        (ValueError, "cores", lambda: interop.from_numpy([np.ones((2, 2, 1))])),
        (ValueError, "backend: .*'torch'", lambda: interop.to_tensornetwork(
            tt.ones((2,)), "torch")),
        (ValueError, "nodes: .*none", lambda: interop.from_tensornetwork([])),
        (TypeError, "x: .*see mera.to_tt", lambda: interop.to_quimb(
            mera.random(jax.random.key(0), (2, 2), 2))),
        (TypeError, "x: .*MatrixProductState.*TT", lambda: interop.from_quimb(tt.ones((2,)))),
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()
