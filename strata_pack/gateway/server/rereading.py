"""SIGHUP reads the API keys and the certificate again; until the gateway listens, the signal is only noted."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from strata_pack.errors import StrataError
from strata_pack.gateway.server.keys import Keys
from strata_pack.gateway.server.listening import Tls

log = logging.getLogger("strata_pack.gateway")


def reread(
    config: uvicorn.Config, keys: Keys, read_keys: Callable[[], tuple[str, ...]] | None, tls: Tls | None
) -> None:
    """Replace ``keys`` by those that ``read_keys`` returns, and load the files of ``tls`` again.

    What cannot be read stays as it was. The log says so for each of the two; ``None`` means that there is none.
    """
    if read_keys is None and tls is None:
        log.info("SIGHUP: there is nothing to read again, neither --api-key-file nor --tls-cert was given")
    if read_keys is not None:
        try:
            keys.replace(read_keys())
        except StrataError as error:
            log.error("SIGHUP: the old API keys stay in use: %s", error)
        else:
            log.info("SIGHUP: the API keys were read again")
    if tls is not None and config.ssl is not None:
        try:
            tls.check()
            config.ssl.load_cert_chain(tls.certificate, tls.key)
        except StrataError as error:
            log.error("SIGHUP: the old certificate stays in use: %s", error)
        else:
            log.info("SIGHUP: the certificate was read again")


@contextmanager
def noted_hangups() -> Iterator[threading.Event]:
    """Note a SIGHUP in the event that is yielded, instead of ending the process, which may be loading a model."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        yield noted
        return
    before = signal.signal(signal.SIGHUP, lambda *_: noted.set())
    try:
        yield noted
    finally:
        signal.signal(signal.SIGHUP, before)
