"""strata-pack: build, repair, prove and serve local-model packs that lose no tool call.

Importing this package imports nothing heavy; each room (``strata_pack.parsing``, ``strata_pack.chat``, ...) is
imported by whoever uses it.
"""

__version__ = "0.1.0"
