"""The ladder as bars against the capacity, as text and as one SVG: of each rung, what the peak is made of.

The scale is linear up to LIMIT. A bar beyond that is cut, and shows its parts in proportion to each other."""

GIB = 1 << 30
LIMIT = 128 * GIB

# In the order of stacking: what it is called, its categories in run.db, letter and colour.
PARTS = [
    ("parameters", ["parameter"], "P", "#31527b"),
    ("gradients", ["gradient"], "G", "#5b84b1"),
    ("optimizer", ["optimizer"], "O", "#a3bfdb"),
    ("checkpoints", ["checkpoint"], "C", "#2e8b74"),
    ("attention", ["attention"], "A", "#d9893b"),
    ("MLP and norms", ["mlp", "norm"], "M", "#c25450"),
    ("loss", ["loss"], "L", "#8a5a9e"),
    ("buffers", ["comm", "workspace", "data"], "B", "#8d8d8d"),
]


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1023.95:
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def parts_of(categories):
    """Bytes per part, of the report's list of categories."""
    held = {row["category"]: row["bytes"] for row in categories}
    known = {name for _, names, _, _ in PARTS for name in names}
    if set(held) - known:
        raise ValueError(f"categories without a part: {sorted(set(held) - known)}")
    return [sum(held.get(name, 0) for name in names) for _, names, _, _ in PARTS]


def shown(parts, length):
    """Lengths of the parts in a bar whose whole scale is `length` long, and whether it is cut."""
    total = sum(parts)
    scale = length / max(total, LIMIT)
    return [part * scale for part in parts], total > LIMIT


def text_bars(rungs, capacity, width=64):
    at = round(width * capacity / LIMIT)
    lines = ["  " + ", ".join(f"{letter} {name}" for name, _, letter, _ in PARTS),
             f"  one letter is {size(LIMIT / width)}; '|' is {size(capacity)}; a bar with '>' is cut, its letters"
             " are in proportion", ""]
    for rung in rungs:
        lengths, cut = shown(rung["parts"], width)
        bar, end = "", 0.0
        for (_, _, letter, _), part in zip(PARTS, lengths):
            end += part
            bar += letter * (round(end) - len(bar))
        bar = bar.ljust(width)
        bar = bar[:at] + "|" + bar[at:] + (">" if cut else " ")
        lines.append(f"  {rung['name']:<11} {bar} {size(sum(rung['parts'])):>10}")
    return lines


# --- SVG ---------------------------------------------------------------------------------------------

LEFT, TOP, BAR, STEP, LENGTH = 150, 96, 26, 44, 640


def tag(name, content=None, **attributes):
    words = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f"<{name} {words}/>" if content is None else f"<{name} {words}>{content}</{name}>"


def label(x, y, words, **attributes):
    return tag("text", words, x=round(x, 1), y=round(y, 1), **attributes)


def legend(y):
    items, x = [], LEFT
    for name, _, _, colour in PARTS:
        items.append(tag("rect", x=x, y=y - 10, width=12, height=12, fill=colour))
        items.append(label(x + 17, y, name, font_size=12))
        x += 30 + 7 * len(name)
    return items


def axis(bottom):
    items = []
    for gib in range(0, LIMIT // GIB + 1, 16):
        x = LEFT + LENGTH * gib * GIB / LIMIT
        items.append(tag("line", x1=x, y1=TOP - 8, x2=x, y2=bottom, stroke="#e4e4e4"))
        items.append(label(x, bottom + 16, gib, font_size=11, fill="#666", text_anchor="middle"))
    items.append(label(LEFT + LENGTH, bottom + 32, "GiB per GPU", font_size=11, fill="#666", text_anchor="end"))
    return items


def bar(rung, y, published_at):
    lengths, cut = shown(rung["parts"], LENGTH)
    items, x = [label(LEFT - 10, y + 18, rung["name"], font_size=14, text_anchor="end")], LEFT
    for (name, _, _, colour), part, held in zip(PARTS, lengths, rung["parts"]):
        title = tag("title", f"{rung['name']}: {name} {size(held)}")
        items.append(tag("rect", title, x=round(x, 2), y=y, width=round(part, 2), height=BAR, fill=colour))
        x += part
    if cut:
        for offset in (-26, -19):
            points = f"{LEFT + LENGTH + offset - 4},{y + BAR + 2} {LEFT + LENGTH + offset + 4},{y - 2}"
            items.append(tag("polyline", points=points, stroke="#fff", stroke_width=3, fill="none"))
    items.append(label(x + 8, y + 18, size(sum(rung["parts"])), font_size=13, font_weight="bold"))
    if published_at is not None:
        at = LEFT + LENGTH * published_at / LIMIT
        points = f"{at - 6},{y - 9} {at + 6},{y - 9} {at},{y - 1}"
        items.append(tag("polygon", points=points, fill="#111"))
        items.append(label(at - 10, y - 1, f"published {published_at / GIB:.1f}", font_size=11,
                           text_anchor="end"))
    return items


def svg(title, subtitle, rungs, capacity):
    bottom = TOP + STEP * len(rungs)
    height, limit = bottom + 50, LEFT + LENGTH * capacity / LIMIT
    items = [tag("rect", width="100%", height="100%", fill="#fff"),
             label(LEFT, 28, title, font_size=18, font_weight="bold"),
             label(LEFT, 48, subtitle, font_size=12, fill="#555"), *legend(72), *axis(bottom)]
    for i, rung in enumerate(rungs):
        items += bar(rung, TOP + STEP * i + 8, rung["published_bytes"])
    items += [tag("line", x1=limit, y1=TOP - 8, x2=limit, y2=bottom, stroke="#c00", stroke_width=2,
                  stroke_dasharray="6 4"),
              label(limit - 6, bottom - 6, f"{capacity // GIB} GiB", font_size=12, fill="#c00",
                    text_anchor="end"),
              label(LEFT, bottom + 34, "Bars with a break are longer than drawn; their parts are in proportion "
                    "to each other.", font_size=11, fill="#555")]
    body = "\n".join(items)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" width="900" height="{height}" '
            f'font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n')
