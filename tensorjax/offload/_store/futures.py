"""Futures that combine several requests, and errors that name the tensors."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from tensorjax.offload._errors import CorruptError, StoreError, listed
from tensorjax.offload._store.transfers.requests import Request


class Countdown:
    """Joint future of several store requests: done once all have ended, with the first error."""

    def __init__(self, count: int, result: Callable[[], Any], drop: Callable[[], Any]):
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self._count, self._result, self._drop = count, result, drop
        self._lock, self._error = threading.Lock(), None
        if not count:
            self.future.set_result(result())

    def down(self, error: BaseException | None) -> None:
        """Records the end of one of several requests; at the last, completes their joint future."""
        with self._lock:
            self._count -= 1
            self._error = self._error or error
            if self._count:
                return
        if self._error is None:
            try:
                result = self._result()
            except Exception as failure:
                self._error = failure
        if self._error is not None:
            self._drop()
            self.future.set_exception(self._error)
        else:
            self.future.set_result(result)


def item_of(several: Future[Any], name: str) -> Future[Any]:
    """Returns the future of one tensor from a future of several tensors by name."""
    single: Future[Any] = Future()
    single.set_running_or_notify_cancel()

    def pass_on(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            single.set_result(done.result()[name])
        else:
            single.set_exception(error)

    several.add_done_callback(pass_on)
    return single


def named(request: Request, error: BaseException, names: Sequence[str]) -> BaseException:
    """Converts a failed disk transfer's error to a StoreError that names the tensors."""
    if any(str(error).startswith(f"{name}: ") for name in names):
        return error
    what = "writing" if request.write else "reading"
    kind = CorruptError if isinstance(error, CorruptError) else StoreError
    said = f"{what} {listed(names)} failed: {type(error).__name__}: {error}"
    named = kind(said, names)
    named.__cause__ = error
    return named
