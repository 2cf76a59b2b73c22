"""``python -m strata_pack``: the command line, where no script is installed."""

from strata_pack.cli.main import main

main()
