"""All methods by name."""

from tensorjax.pde._implicit import imex
from tensorjax.pde._splitting import bug, projector_splitting
from tensorjax.pde._steppers import STEPPERS, Method

METHODS: dict[str, Method] = {
    **STEPPERS,
    "bug": Method(bug, 2, 0, 0),
    "projector splitting": Method(projector_splitting, 2, 0, 0),
    "imex": Method(imex, 2, 1, 1),
}
