"""Images to project: a file in Keras's layout, MNIST from OpenML, or scikit-learn's digits."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KEYS = ("x_train", "y_train", "x_test", "y_test")
OPENML_TRAIN = 60_000
DIGITS_TEST = 500


@dataclass(frozen=True)
class Images:
    """Grey images and labels, for training and test.

    Attributes:
        name: What they are, for captions.
        x_train: (n, height, width) float32, scaled to at most 1 in magnitude.
        y_train: (n,) labels.
        x_test: (n', height, width).
        y_test: (n',).
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the images in pixels."""
        return self.x_train.shape[1], self.x_train.shape[2]

    def sample(self, train_size: int, test_size: int, seed: int) -> "Images":
        """Draws a random sample of training and test images."""
        rng = np.random.default_rng(seed)
        train = rng.permutation(len(self.x_train))[:train_size]
        test = rng.permutation(len(self.x_test))[:test_size]
        halves = self.x_train[train], self.y_train[train], self.x_test[test], self.y_test[test]
        return Images(self.name, *halves)


def load(path: Path | None, *, openml: bool) -> Images:
    """Loads images from a file, from OpenML if wanted, or the bundled digits."""
    if path is not None:
        return from_npz(path)
    return from_openml() if openml else bundled_digits()


def from_npz(path: Path) -> Images:
    """Reads images from an ``.npz`` file in Keras's layout.

    ``x_train``, ``y_train``, ``x_test``, ``y_test``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no ``.npz`` file, lacks an array, or the arrays do not fit together.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected an .npz file in Keras' layout, found nothing")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: expected an .npz file in Keras' layout, got something else")
    with np.load(path, allow_pickle=False) as file:
        missing = [key for key in KEYS if key not in file.files]
        if missing:
            raise ValueError(
                f"{path}: expected the arrays {', '.join(KEYS)}, got {', '.join(file.files)}; "
                f"missing: {', '.join(missing)}"
            )
        try:
            arrays = {key: file[key] for key in KEYS}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: expected numeric arrays, got one unread: {error}") from error
    return checked(path.name, arrays)


def checked(name: str, arrays: dict[str, np.ndarray]) -> Images:
    """Converts four arrays to images with scaled pixels; ValueError if they do not fit."""
    for half in ("train", "test"):
        x, y = arrays[f"x_{half}"], arrays[f"y_{half}"]
        if x.ndim != 3 or 0 in x.shape or x.dtype.kind not in "uif":
            raise ValueError(
                f"{name}, x_{half}: expected grey images, numbers of shape "
                f"(count, height, width), got {x.dtype} of shape {x.shape}"
            )
        if not np.isfinite(x).all():
            raise ValueError(f"{name}, x_{half}: expected finite pixels, got NaN or Inf")
        if y.size != len(x) or y.shape[0] != len(x):
            raise ValueError(
                f"{name}, y_{half}: expected one label for each of the {len(x)} images of "
                f"x_{half}, got shape {y.shape}"
            )
    sizes = arrays["x_train"].shape[1:], arrays["x_test"].shape[1:]
    if sizes[0] != sizes[1]:
        raise ValueError(f"{name}: expected images of one size, got {sizes[0]} and {sizes[1]}")
    largest = np.abs(arrays["x_train"].astype(np.float32)).max() or np.float32(1)
    pixels = [arrays[f"x_{half}"].astype(np.float32) / largest for half in ("train", "test")]
    return Images(name, pixels[0], arrays["y_train"].ravel(), pixels[1], arrays["y_test"].ravel())


def from_openml() -> Images:
    """Fetches MNIST by scikit-learn, which keeps a copy in its own cache.

    Raises:
        ConnectionError: OpenML cannot be reached.
    """
    from sklearn.datasets import fetch_openml

    try:
        x, y = fetch_openml("mnist_784", version=1, as_frame=False, return_X_y=True, n_retries=0)
    except OSError as error:
        raise ConnectionError(
            f"MNIST could not be fetched from OpenML ({error}); --openml needs the network. "
            "With a copy of mnist.npz in Keras' layout, use --data PATH; "
            "without either option the bundled digits are used"
        ) from error
    x, n = x.reshape(-1, 28, 28), OPENML_TRAIN
    arrays = {"x_train": x[:n], "y_train": y[:n], "x_test": x[n:], "y_test": y[n:]}
    return checked("MNIST (OpenML)", arrays)


def bundled_digits() -> Images:
    """Loads scikit-learn's 1797 handwritten digits, 8×8 pixels; the last 500 are for test.

    They stand in for MNIST, which no package bundles.
    """
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    x, y, n = digits.images, digits.target, -DIGITS_TEST
    arrays = {"x_train": x[:n], "y_train": y[:n], "x_test": x[n:], "y_test": y[n:]}
    return checked("scikit-learn's bundled digits (8×8, not MNIST)", arrays)
