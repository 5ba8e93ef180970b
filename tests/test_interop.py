"""Other packages' tensors: there and back, contracted by their own means."""

import itertools
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
    for given in (nodes, (nodes, edges)):
        back = interop.from_tensornetwork(given)
        assert jax.tree.structure(back) == jax.tree.structure(x)
        assert all((a == b).all() for a, b in zip(*map(jax.tree.leaves, (back, x)), strict=True))
    with pytest.raises(ValueError, match="edges of all modes in order"):
        interop.from_tensornetwork((nodes, edges[1:]))
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


@pytest.mark.parametrize("modes", [1, 2])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_outer_bonds_of_foreign_chains_may_be_there_or_not(rng, modes, order):
    """And legs in any order, modes of size one among them."""
    for _ in range(8):
        ranks = [1, *rng.integers(1, 4, order - 1), 1]
        sizes = [tuple(rng.integers(1, 4, modes)) for _ in range(order)]
        cores_ = [normal(rng, (ranks[k], *sizes[k], ranks[k + 1])) for k in range(order)]
        sides = [rng.random() < 0.7, rng.random() < 0.7]
        if order == 1 and modes == 1:  # else one mode and an outer bond look like two modes
            sides = [True, True]
        if order <= 2 and modes == 2:
            sides = [sides[0]] * 2
        names = ["left", "row", "column", "right"] if modes == 2 else ["left", "mode", "right"]
        nodes = []
        for k, c in enumerate(cores_):
            kept = list(names)
            if k == 0 and not sides[0]:
                c, kept = c[0], kept[1:]
            if k == order - 1 and not sides[1]:
                c, kept = c[..., 0], kept[:-1]
            turn = rng.permutation(c.ndim)
            nodes.append(tn.Node(c.transpose(turn), axis_names=[kept[axis] for axis in turn]))
        for a, b in itertools.pairwise(nodes):
            a["right"] ^ b["left"]
        found = interop.from_tensornetwork(nodes)
        expected = (tt.TT if modes == 1 else tt.TTMatrix)(cores_)
        assert [c.shape for c in found.cores] == [c.shape for c in expected.cores]
        for c, given in zip(found.cores, cores_, strict=True):
            np.testing.assert_array_equal(c, given)


def test_open_edges_that_are_no_modes_are_named(rng):
    def chain(*shapes):
        nodes = [tn.Node(normal(rng, shape)) for shape in shapes]
        for a, b in itertools.pairwise(nodes):
            a[-1] ^ b[0]
        return nodes

    first = chain((1, 2, 3), (3, 2, 3), (3, 2))  # a state's own layout, without names
    with pytest.raises(ValueError, match=r"nodes\[0\]: .*sizes \(2, 2\)"):
        interop.from_tensornetwork(chain((2, 2, 3), (3, 2, 3), (3, 2)))
    with pytest.raises(ValueError, match=r"nodes\[1\]: .*got 2 edges"):
        interop.from_tensornetwork(chain((2, 3), (3, 2, 1, 3), (3, 2)))
    assert interop.from_tensornetwork(first).shape == (2, 2, 2)
    found = interop.from_tensornetwork(chain((1, 3, 2), (2, 4, 1)))  # rows first
    assert (found.row_shape, found.col_shape) == ((1, 4), (3, 1))
    a, b = chain((1, 2, 3), (3, 2, 1))
    a.add_axis_names(["left", "mode", "right"])
    with pytest.raises(ValueError, match="rows and columns, or outer bonds"):
        interop.from_tensornetwork([a, b])
    b.add_axis_names(["left", "mode", "right"])
    assert interop.from_tensornetwork([a, b]).shape == (2, 2)


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


@pytest.mark.parametrize("seed", range(3))
def test_the_exponent_of_quimb_goes_into_the_cores(seed):
    """States and operators, real and complex, whose norms the float64 of one tensor cannot hold."""
    rng = np.random.default_rng(seed)
    length, dtype = int(rng.integers(1, 8)), rng.choice(["float64", "complex128"])
    state = qtn.MPS_rand_state(length, 3, phys_dim=2, dtype=dtype, seed=seed)
    operator = qtn.MPO_rand(max(length, 2), 2, dtype=dtype, seed=seed)
    for x in (state, operator):
        exact = np.asarray(x.to_dense()).ravel()
        for value in (1.0, float(rng.uniform(0.01, 5)), 1e-3):
            y = x.copy()
            y.equalize_norms_(value)
            t = interop.from_quimb(y)
            assert error(dense(t).ravel(), exact) <= 1e-12 * np.linalg.norm(exact)
        y = x.copy()
        y.exponent = -2.5
        assert error(dense(interop.from_quimb(y)).ravel(), exact * 10**-2.5) <= 1e-14
        back = interop.from_quimb(interop.to_quimb(interop.from_quimb(y)))
        assert error(dense(back).ravel(), exact * 10**-2.5) <= 1e-14
    # Beyond float64: the train holds it, its dense array would not.
    long = qtn.MPS_rand_state(40, 2, seed=seed)
    long.exponent = 1234.5
    t = interop.from_quimb(long)
    sizes = [np.log10(np.linalg.norm(np.asarray(c))) for c in t.cores]
    assert max(sizes) < 60
    long.exponent = 0.0
    plain = [np.log10(np.linalg.norm(np.asarray(c))) for c in interop.from_quimb(long).cores]
    assert abs(sum(sizes) - sum(plain) - 1234.5) <= 1e-9
    long.exponent = -np.inf
    assert not np.asarray(interop.from_quimb(long).cores[0]).any()
    long.exponent = np.nan
    with pytest.raises(ValueError, match="exponent, got nan"):
        interop.from_quimb(long)


def test_quimb_networks_that_are_no_chain_are_refused(rng):
    gate = rng.standard_normal((4, 4))
    gated = qtn.MPS_rand_state(6, 4, seed=0).gate(gate, (1, 2), contract=False)
    with pytest.raises(ValueError, match="one tensor for each of 6 sites, got 7; contract gates"):
        interop.from_quimb(gated)
    gaps = qtn.MatrixProductState(
        [np.ones((2, 2)), np.ones((2, 2, 2)), np.ones((2, 2))], sites=(1, 2, 4), L=6
    )
    with pytest.raises(ValueError, match="number the sites from 0 on"):
        interop.from_quimb(gaps)
    split = qtn.MPS_rand_state(6, 4, seed=0).gate(gate, (1, 2), contract="swap+split")
    t = interop.from_quimb(split)
    assert error(dense(t).ravel(), split.to_dense().ravel()) <= 1e-13
    merged = qtn.MPS_rand_state(6, 4, seed=0).gate(gate, (1, 2), contract=True)
    with pytest.raises(ValueError, match="expected one tensor"):
        interop.from_quimb(merged)
    far = qtn.MPS_rand_state(6, 4, seed=0)
    far[0].new_ind("extra", size=2)
    far[4].new_ind("extra", size=2)
    with pytest.raises(ValueError, match=r"x\[0\]: expected the indices .* and bonds"):
        interop.from_quimb(far)
    double = qtn.MPS_rand_state(6, 4, seed=0)
    for k in (2, 3):
        double[k].new_ind("second", size=2)
        double[k].modify(data=double[k].data * rng.standard_normal(double[k].shape))
    t = interop.from_quimb(double)
    assert max(t.ranks) == 8
    assert error(dense(t).ravel(), np.asarray(double.to_dense()).ravel()) <= 1e-13
    for other in (qtn.PEPS.rand(2, 2, 2), qtn.TensorNetwork([]), np.ones(3), [1]):
        with pytest.raises(TypeError, match="MatrixProductState or MatrixProductOperator"):
            interop.from_quimb(other)


class Watched:
    """An array of PyTorch whose gradient is asked for, as NumPy sees it."""

    def __init__(self, data):
        self.shape, self.ndim, self.dtype = data.shape, data.ndim, data.dtype

    def detach(self):
        return self

    def __array__(self, *args, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_arrays_that_numpy_cannot_read_are_named():
    core = Watched(np.ones((1, 3, 1)))
    calls = [
        lambda: interop.from_numpy([core]),
        lambda: tt.TT([core]),
        lambda: tucker.Tucker(np.ones((1,)), [core]),
        lambda: tt.from_dense(core, tol=0.1),
        lambda: mera.MERA([], core),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"Watched .*requires grad.*detach\(\)"):
            call()


def test_several_edges_are_one_bond_and_axes_may_be_moved(rng):
    a, b, c = (tn.Node(normal(rng, s)) for s in ((3, 2, 4), (4, 5, 2, 3), (3, 6)))
    a[1] ^ b[2]
    a[2] ^ b[0]
    b[3] ^ c[0]
    x = interop.from_tensornetwork([a, b, c])
    assert x.ranks == (1, 8, 3, 1)
    exact = np.einsum("iab,bjac,ck->ijk", a.tensor, b.tensor, c.tensor)
    assert error(dense(x), exact) <= 1e-13 * np.linalg.norm(exact)
    for name in NAMES:
        y = build(name, rng)
        nodes, _ = interop.to_tensornetwork(y)
        for node in nodes:
            node.reorder_edges([node.edges[k] for k in rng.permutation(len(node.edges))])
        back = interop.from_tensornetwork(nodes)
        assert jax.tree.structure(back) == jax.tree.structure(y)
        assert error(full(back), full(y)) <= 1e-6 * np.linalg.norm(full(y))


def test_what_is_no_list_of_nodes_is_refused(rng):
    mps = tn.FiniteMPS.random([2] * 4, [3] * 3, np.float64)
    with pytest.raises(TypeError, match=r"got a FiniteMPS.*tt.TT\(mps.tensors\)"):
        interop.from_tensornetwork(mps)
    assert tt.TT(mps.tensors).shape == (2,) * 4
    infinite = tn.InfiniteMPS.random([2] * 3, [3] * 4, np.float64)
    with pytest.raises(TypeError, match="InfiniteMPS is no tensor"):
        interop.from_tensornetwork(infinite)
    a, b, c = (tn.Node(normal(rng, s)) for s in ((3, 2), (2, 5, 4), (4, 6)))
    a[1] ^ b[0]
    b[2] ^ c[0]
    for wrong in ({a, b, c}, a, None, "abc"):
        with pytest.raises(TypeError, match="nodes: expected a list"):
            interop.from_tensornetwork(wrong)
    with pytest.raises(TypeError, match=r"nodes\[1\]: expected a node"):
        interop.from_tensornetwork([a, np.ones(2)])
    with pytest.raises(ValueError, match=r"nodes\[1\]: .*outside of it"):
        interop.from_tensornetwork([a, b])
    loop = tn.Node(normal(rng, (2, 3, 3)))
    loop[1] ^ loop[2]
    with pytest.raises(ValueError, match=r"nodes\[0\]: .*to itself"):
        interop.from_tensornetwork([loop])


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
        (TypeError, "'layers'.*list", lambda: interop.from_numpy({"layers": None, "top": 1.0})),
        (ValueError, "'layers'.*int", lambda: interop.from_numpy({"layers": [3], "top": 1.0})),
        (ValueError, "cores", lambda: interop.from_numpy([np.ones((2, 2, 1))])),
        (ValueError, "backend: .*'torch'", lambda: interop.to_tensornetwork(
            tt.ones((2,)), "torch")),
        (ValueError, "nodes: .*none", lambda: interop.from_tensornetwork([])),
        (TypeError, "x: .*by tucker.to_tt or mera.to_tt", lambda: interop.to_quimb(
            mera.random(jax.random.key(0), (2, 2), 2))),
        (TypeError, "x: .*MatrixProductState.*TT", lambda: interop.from_quimb(tt.ones((2,)))),
    ],
)  # fmt: skip
def test_bad_input_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()
