"""``python -m strata_pack``: the command line where the ``strata-pack`` script is not installed."""

from strata_pack.cli.main import main

main()
