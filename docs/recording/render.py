#!/usr/bin/env python3
"""Draws a recording of `record.py` as an animated SVG: SVG and CSS, no script, for light and dark pages.

    python3 docs/recording/render.py docs/recording/kill.jsonl > docs/src/images/kill.svg

The animation runs at the speed of the recording. Without animation (`prefers-reduced-motion`, or a viewer
that has none) the picture shows the end. Standard library only.
"""

import html
import itertools
import json
import sys

COLUMNS, ROWS, LINE, CHAR, PAD = 92, 15, 19, 7.85, 18
STEP = 0.08  # text that arrives within this many seconds appears at once
HOLD = 4.0  # seconds that the end stays before the loop begins again
WIDTH = int(COLUMNS * CHAR + 2 * PAD)
TOP, PANE = 36, ROWS * LINE + 16
BOTTOM = TOP + PANE
HEIGHT = BOTTOM + 4 * LINE + 24
DIM = 'class="dim"'

STYLE = """
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
  .b { fill: #0d1117; stroke: #3d444d } .bar { fill: #161b22 } .rule { stroke: #30363d }
  .t { fill: #d1d7e0 } .dim { fill: #8b949e } .cmd { fill: #f0f6fc } .red { fill: #ff7b72 } .ok { fill: #56d364 }
  .a { animation: DURATIONs linear infinite } .s { animation-timing-function: step-end }
  @media (prefers-reduced-motion: reduce) { .a { animation: none !important } }
"""


class Film:
    """Keyframes of a loop of `seconds`, named by number."""

    def __init__(self, seconds):
        self.seconds, self.rules = seconds, []

    def percent(self, at):
        return f"{100 * at / self.seconds:.2f}%"

    def add(self, frames):
        """Adds values by time, each held until the next; returns the attributes that play them."""
        name = f"k{len(self.rules)}"
        body = "".join(f"{self.percent(at)}{{{value}}}" for at, value in frames)
        self.rules.append(f"@keyframes {name}{{{body}}}")
        return f'class="a s" style="animation-name:{name}"'

    def shown(self, begin, end=None):
        """Visible from `begin`, until `end` if there is one."""
        frames = [(0, "fill-opacity:0"), (begin, "fill-opacity:1")]
        return self.add(frames + ([(end, "fill-opacity:0")] if end is not None else []))


def chunks(events, prompt):
    """Text of the displayed stream, grouped by time."""
    found = [[0.0, prompt]]
    for seconds, kind, value in events:
        if kind == "text" and seconds - found[-1][0] < STEP and len(found) > 1:
            found[-1][1] += value
        elif kind == "text":
            found.append([seconds, value])
    return found


def lines_of(pieces):
    """Lines of at most COLUMNS characters, broken at spaces, each a list of (seconds, text)."""
    text, times = "".join(part for _, part in pieces), [seconds for seconds, part in pieces for _ in part]
    lines, begin = [], 0
    while begin < len(text):
        newline = text.find("\n", begin, begin + COLUMNS + 1)
        space = text.rfind(" ", begin + 1, begin + COLUMNS + 1)
        if newline >= 0:
            end = newline
        elif len(text) - begin <= COLUMNS:
            end = len(text)
        else:
            end = space if space > begin else begin + COLUMNS
        parts = itertools.groupby(range(begin, end), key=times.__getitem__)
        lines.append([(seconds, "".join(text[at] for at in part)) for seconds, part in parts])
        begin = end + (end < len(text) and text[end] in " \n")
    return lines


def typed(film, lines):
    """Upper pane: text appears piece by piece, and a full pane scrolls by a line."""
    out, scroll, latest = [], [(0, "transform:translateY(0)")], 0.0
    for row, line in enumerate(lines):
        latest = max([latest] + [seconds for seconds, _ in line[:1]])
        if row >= ROWS:
            scroll.append((latest, f"transform:translateY({-LINE * (row - ROWS + 1)}px)"))
        spans = "".join(
            f"<tspan {film.shown(seconds) if seconds else DIM}>{html.escape(text, quote=False)}</tspan>"
            for seconds, text in line)
        y = TOP + 20 + row * LINE
        out.append(f'<text class="t" x="{PAD}" y="{y}" xml:space="preserve">{spans}</text>')
    end = scroll[-1][1].removeprefix("transform:")
    # Several lines may begin at the same time; the last position counts.
    scroll = list({at: value for at, value in scroll}.items())
    moving = film.add(scroll).replace('style="', f'style="transform:{end};')
    return f"<g {moving}>" + "\n".join(out) + "</g>"


def counters(film, header, events):
    """Line of figures, with a frame for each reading."""
    counts = [(seconds, value) for seconds, kind, value in events if kind == "count"][::3]
    out = []
    for at, (seconds, value) in enumerate(counts):
        end = counts[at + 1][0] if at + 1 < len(counts) else None
        if end is None:
            break
        text = f"{header['streams']} streams   {value['tokens']:>6,} tokens   {value['failed']} failed"
        out.append(counter(text, film.shown(seconds, end) + ' fill-opacity="0"'))
    text = f"{header['streams']} streams   {header['tokens']:>6,} tokens   {header['failed']} failed"
    out.append(counter(text, film.shown(counts[-1][0])))
    return "\n".join(out)


def counter(text, attributes):
    spans = f'<tspan {attributes} fill="#d1d7e0">{text}</tspan>'
    return f'<text x="{WIDTH - PAD}" y="24" text-anchor="end">{spans}</text>'


def console(film, header, events, end):
    """Lower pane: the kills as they happen, and the final check."""
    kills = [(seconds, pid) for seconds, kind, pid in events if kind == "kill"]
    rows = [
        (seconds, [("dim", "$ "), ("cmd", f"kill -9 {pid}"), ("red", f"   # {which} of {header['workers']} workers")])
        for (seconds, pid), which in zip(kills, ("one", "another"))]
    ended = f"{header['done']} of {header['streams']} streams ended"
    tokens = f"{header['tokens']:,} of {header['expected_tokens']:,} tokens"
    rows += [
        (end, [("ok", f"{ended}, {header['moved']} of them moved to another worker on the way")]),
        (end, [("ok", f"{tokens}; {header['altered']} answers differ from an undisturbed run")])]
    out = []
    for row, (seconds, parts) in enumerate(rows):
        shown = film.shown(seconds)
        spans = "".join(f'<tspan class="{kind}">{html.escape(text)}</tspan>' for kind, text in parts)
        y = BOTTOM + 26 + row * LINE
        out.append(f'<text x="{PAD}" y="{y}" xml:space="preserve" {shown}>{spans}</text>')
    return "\n".join(out)


def draw(header, events):
    end = max(seconds for seconds, _, _ in events)
    film = Film(end + HOLD)
    pieces = chunks(events, header["prompt"])
    body = "\n".join([
        typed(film, lines_of(pieces)), "</g>", counters(film, header, events), console(film, header, events, end)])
    style = STYLE.replace("DURATION", f"{film.seconds:.2f}") + "\n".join(film.rules)
    title = f"{header['streams']} streams go on while {header['kills']} of {header['workers']} workers are killed"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{title}</title>
<style>{style}</style>
<clipPath id="pane"><rect x="0" y="{TOP + 5}" width="{WIDTH}" height="{PANE - 6}"/></clipPath>
<rect class="b" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="9"/>
<path class="bar" d="M1 10a9 9 0 0 1 9-9h{WIDTH - 20}a9 9 0 0 1 9 9v25H1z"/>
<text class="dim" x="{PAD}" y="24">one of {header['streams']} streams</text>
<g clip-path="url(#pane)">
{body}
<path class="rule" d="M0 {BOTTOM}.5h{WIDTH}"/>
</svg>
"""


def main(path):
    with open(path, encoding="utf-8") as file:
        header, *events = [json.loads(line) for line in file]
    print(draw(header, events), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
