"""Lists the commands: name, module, and summary on the top page of the help.

This module and ``strata_pack.cli.main`` import nothing, so that ``--help`` and ``--version`` take little more time
than a start of the interpreter. The help shows the commands in this order.
"""

SUMMARY = "Build and prove local-model packs whose tool calls never get lost."

SECTIONS = {
    "Make a pack": {
        "build": ("strata_pack.cli.build", "Build a pack: fetch, convert, quantize, install the template."),
        "fetch": ("strata_pack.cli.fetch", "Fetch what a build needs from the Hub."),
        "convert": ("strata_pack.cli.convert", "Convert safetensors to GGUF, without torch."),
        "imatrix": ("strata_pack.cli.imatrix", "Collect an importance matrix, or show one."),
        "quantize": ("strata_pack.cli.quantize", "Quantize a GGUF or a checkpoint."),
    },
    "Release it": {
        "release": ("strata_pack.cli.release", "Build many packs from one file: plan, run, status, publish."),
        "keygen": ("strata_pack.cli.keygen", "Make a key pair for signing packs."),
        "sign": ("strata_pack.cli.sign", "Sign a pack."),
        "publish": ("strata_pack.cli.publish", "Publish packs to the Hub, a folder or an OCI layout."),
        "export": ("strata_pack.cli.export", "Write what Ollama, LM Studio or llama-swap needs."),
    },
    "Judge it": {
        "prove": ("strata_pack.cli.prove", "Run verify, golden and smoke on a pack."),
        "verify": ("strata_pack.cli.verify", "Check a pack's files against its manifest."),
        "rebuild": ("strata_pack.cli.rebuild", "Build a pack again from its manifest and compare."),
        "smoke": ("strata_pack.cli.smoke", "Run the scenarios on a real llama.cpp server."),
        "compare": ("strata_pack.cli.compare", "Compare two models: perplexity, KL divergence."),
        "calls": ("strata_pack.cli.calls", "Measure how well a model calls tools."),
        "inspect": ("strata_pack.cli.inspect", "Show metadata, tensor types and template of a model."),
    },
    "Templates": {
        "template": ("strata_pack.cli.template", "Repair, lint, install and inspect chat templates."),
        "golden": ("strata_pack.cli.golden", "Check and record golden conversations."),
    },
    "Serve and read": {
        "serve": ("strata_pack.cli.serve", "Serve a pack with an OpenAI-compatible API."),
        "parse": ("strata_pack.cli.parse", "Parse generated text into events."),
        "replay": ("strata_pack.cli.replay", "Find lost tool calls in a log."),
        "runtime": ("strata_pack.cli.runtime", "List, check, build and choose llama.cpp runtimes."),
    },
    "This installation": {
        "env": ("strata_pack.cli.env", "Show versions, devices and folders for a bug report."),
        "cache": ("strata_pack.cli.cache", "Show and empty the folder of built runtimes."),
    },
}

COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

OPTIONS = {
    "--version": "Print the version and exit.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Print the completion script of the current shell.",
    "-h, --help": "Print this page and exit.",
}


def top_page(width: int = 80, *, styled: bool = False) -> str:
    """Return the page that ``strata-pack --help`` prints, wrapped at ``width`` columns; ``styled`` for bold titles."""
    bold, plain = ("\033[1m", "\033[0m") if styled else ("", "")
    lines = ["Usage: strata-pack [OPTIONS] COMMAND [ARGS]...", "", *_wrapped(SUMMARY, width, 0)]
    sections = {title: {name: line for name, (_, line) in rows.items()} for title, rows in SECTIONS.items()}
    for title, rows in {**sections, "Options": OPTIONS}.items():
        lines += ["", f"{bold}{title}{plain}"]
        column = max(map(len, rows)) + 4 if title == "Options" else _COLUMN
        for name, text in rows.items():
            first, *rest = _wrapped(text, width, column)
            lines += [f"  {name}".ljust(column) + first.lstrip(), *rest]
    more = _wrapped("strata-pack COMMAND --help shows the flags of a command and an example.", width, 0)
    return "\n".join([*lines, "", *more, ""])


_COLUMN = max(map(len, COMMANDS)) + 4


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and indent + len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return [" " * indent + line for line in lines]
