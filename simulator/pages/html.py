"""A page as HTML. The template engine is imported here alone: most commands write no page."""

from importlib.resources import files

from jinja2 import Environment

from simulator.pages.blocks import Bars, Block, Curve, Page, Stacks, Table
from simulator.pages.drawing import Drawing, draw_bars, draw_curve, draw_stacks


def html_of(page: Page) -> str:
    """Return the page as HTML."""
    source = files("simulator.pages").joinpath("page.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    blocks = [(block, _drawn(block)) for block in page.blocks]
    return environment.from_string(source).render(page=page, blocks=blocks)


def _drawn(block: Block) -> Drawing | None:
    match block:
        case Bars():
            return draw_bars(block)
        case Stacks():
            return draw_stacks(block)
        case Curve():
            return draw_curve(block)
        case Table():
            return None
