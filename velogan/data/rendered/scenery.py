"""Photo-like backgrounds for the rendered data set: walls, floors, light and soft shadows.

Canvases are `(3, S, S)` float32 in linear light, [0, 1]; `x` runs right and `y` down, both in [0, 1].
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

TILE = 256


@dataclass(frozen=True)
class Light:
    """A key light and ambient light. `direction`: unit vector to the key light (x right, y up, z to the viewer)."""

    direction: np.ndarray
    colour: np.ndarray
    ambient: float


def draw_colour(random: np.random.Generator, saturation: tuple[float, float], value: tuple[float, float]) -> np.ndarray:
    """Draw a colour of any hue, `(3, 1, 1)` in linear light; `saturation` and `value` are ranges of HSV."""
    rgb = colorsys.hsv_to_rgb(random.random(), random.uniform(*saturation), random.uniform(*value))
    return to_linear(*rgb)


def to_linear(red: float, green: float, blue: float) -> np.ndarray:
    """Convert display values in [0, 1] to linear light `(3, 1, 1)`, with a gamma of 2."""
    return np.square(np.array([red, green, blue], np.float32)).reshape(3, 1, 1)


def stretch(grid: np.ndarray, width: int, height: int) -> np.ndarray:
    """Resize a small float grid `(h, w)` smoothly to `(height, width)`."""
    image = Image.fromarray(np.ascontiguousarray(grid, np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def draw_noise_tile(random: np.random.Generator) -> np.ndarray:
    """Draw seamless fractal noise `(256, 256)` with a mean near 0 and a standard deviation near 1."""
    half = TILE // 2
    octaves = [(4, 1.0), (8, 0.6), (16, 0.4), (64, 0.25)]
    total = np.zeros((half, half), np.float32)
    for cells, weight in octaves:
        total += weight * stretch(random.standard_normal((cells, cells)), half, half)
    total /= total.std() + 1e-6
    return np.block([[total, total[:, ::-1]], [total[::-1], total[::-1, ::-1]]])


def look_up(tile: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Sample a repeating texture at horizontal `u` and vertical `v`, in tiles, by nearest neighbour."""
    columns = (u * TILE).astype(np.int32) & (TILE - 1)
    rows = (v * TILE).astype(np.int32) & (TILE - 1)
    return tile[rows, columns]


def smooth_step(low: float, high: float, x: np.ndarray) -> np.ndarray:
    """Interpolate from 0 at `low` to 1 at `high` by a cubic."""
    t = np.clip((x - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def mix(first: np.ndarray, second: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
    """Blend two colours or images; weight 0 is the first, 1 the second."""
    return first + (second - first) * weight


# Walls: functions of the image plane


def _gradient_wall(random: np.random.Generator, x: np.ndarray, y: np.ndarray, tile: np.ndarray) -> np.ndarray:
    angle = random.uniform(0, 2 * np.pi)
    along = 0.5 + 0.7 * ((x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle))
    first, second = draw_colour(random, (0.05, 0.45), (0.3, 0.95)), draw_colour(random, (0.05, 0.45), (0.3, 0.95))
    return mix(first, second, np.clip(along, 0, 1))


def _backdrop_wall(random: np.random.Generator, x: np.ndarray, y: np.ndarray, tile: np.ndarray) -> np.ndarray:
    size = x.shape[-1]
    blotches = stretch(random.uniform(-0.3, 1.3, (4, 4)), size, size)
    fine = stretch(tile[:24, :24], size, size)
    first, second = draw_colour(random, (0.1, 0.45), (0.3, 0.7)), draw_colour(random, (0.05, 0.4), (0.5, 0.95))
    return mix(first, second, np.clip(blotches + 0.12 * fine, 0, 1))


def _striped_wall(random: np.random.Generator, x: np.ndarray, y: np.ndarray, tile: np.ndarray) -> np.ndarray:
    first = draw_colour(random, (0.05, 0.35), (0.55, 0.95))
    second = first * random.uniform(0.6, 0.85)
    wave = np.sin(x * 2 * np.pi * random.uniform(4, 10) + random.uniform(0, 6)) * 3
    return mix(first, second, 0.5 + 0.5 * np.clip(wave, -1, 1)) * (1.05 - 0.3 * y)


def _bokeh_wall(random: np.random.Generator, x: np.ndarray, y: np.ndarray, tile: np.ndarray) -> np.ndarray:
    wall = _gradient_wall(random, x, y, tile) * random.uniform(0.25, 0.6)
    tint = draw_colour(random, (0.1, 0.5), (0.7, 1.0))
    for _ in range(random.integers(9, 18)):
        centre_x, centre_y = random.random(), random.uniform(0, 0.7)
        radius = random.uniform(0.03, 0.11)
        distance = np.sqrt((x - centre_x) ** 2 + (y - centre_y) ** 2)
        disc = 1 - smooth_step(radius * 0.8, radius * 1.15, distance)
        glow = mix(tint, draw_colour(random, (0.1, 0.5), (0.7, 1.0)), 0.5)
        wall = mix(wall, glow, disc * random.uniform(0.15, 0.55))
    return wall


# Floors: functions of ground coordinates u (across) and v (away from the viewer)


def _wooden_floor(random: np.random.Generator, u: np.ndarray, v: np.ndarray, tile: np.ndarray) -> np.ndarray:
    planks = v * random.uniform(3.0, 6.0)
    plank = np.floor(planks)
    grain = look_up(tile, u * 0.12 + plank * 0.37, planks * 0.31)
    rings = np.sin(10.0 * grain + planks * 9.0)
    tone = np.modf(np.abs(np.sin(plank * 12.99)) * 43.7)[0]
    seam = np.minimum(planks - plank, 1 - (planks - plank))
    shade = (0.8 + 0.35 * tone + 0.07 * grain + 0.05 * rings) * (0.45 + 0.55 * smooth_step(0.0, 0.05, seam))
    value = random.uniform(0.45, 0.85)
    return to_linear(value, value * random.uniform(0.76, 0.85), value * random.uniform(0.56, 0.72)) * shade


def _cloth_floor(random: np.random.Generator, u: np.ndarray, v: np.ndarray, tile: np.ndarray) -> np.ndarray:
    first = draw_colour(random, (0.0, 0.15), (0.75, 0.97))
    second = draw_colour(random, (0.25, 0.6), (0.35, 0.8))
    count = random.uniform(3, 6)
    bands = 0.5 + 0.5 * np.clip(4 * np.sin(u * 2 * np.pi * count), -1, 1)
    if random.random() < 0.6:  # gingham: the same bands both ways
        bands = 0.5 * bands + 0.25 + 0.25 * np.clip(4 * np.sin(v * 2 * np.pi * count), -1, 1)
    return mix(first, second, bands) * (1 + 0.06 * look_up(tile, u * 0.2, v * 0.2))


def _plain_floor(random: np.random.Generator, u: np.ndarray, v: np.ndarray, tile: np.ndarray) -> np.ndarray:
    return draw_colour(random, (0.0, 0.4), (0.4, 0.95)) * (
        1 + random.uniform(0.02, 0.1) * look_up(tile, u * 0.3, v * 0.3)
    )


def _tiled_floor(random: np.random.Generator, u: np.ndarray, v: np.ndarray, tile: np.ndarray) -> np.ndarray:
    count = random.uniform(2.5, 5)
    first = draw_colour(random, (0.0, 0.3), (0.6, 0.95))
    second = first * random.uniform(0.5, 0.9)
    columns, rows = u * count, v * count
    checks = (np.floor(columns) + np.floor(rows)) % 2
    inside = np.minimum(np.abs(columns - np.round(columns)), np.abs(rows - np.round(rows)))
    marble = 1 + 0.07 * look_up(tile, u * 0.4, v * 0.4)
    return mix(first, second, checks) * marble * (0.7 + 0.3 * smooth_step(0.01, 0.04, inside))


Painter = Callable[[np.random.Generator, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
WALLS: tuple[Painter, ...] = (_gradient_wall, _backdrop_wall, _striped_wall, _bokeh_wall)
FLOORS: tuple[Painter, ...] = (_wooden_floor, _cloth_floor, _plain_floor, _tiled_floor)


def paint_background(random: np.random.Generator, size: int) -> tuple[np.ndarray, float]:
    """Paint a background `(3, size, size)`; return it and the horizon's y, which is 0 for a view from above."""
    steps = ((np.arange(size, dtype=np.float32) + 0.5) / size).astype(np.float32)
    x, y = np.broadcast_to(steps, (size, size)), np.broadcast_to(steps[:, None], (size, size))
    tile = draw_noise_tile(random)
    wall, floor = WALLS[random.integers(len(WALLS))], FLOORS[random.integers(len(FLOORS))]
    horizon = random.uniform(0.3, 0.55) if random.random() < 0.75 else 0.0
    slant, shift = random.uniform(-0.6, 0.6), random.uniform(0, 1)
    if not horizon:
        canvas = floor(
            random, shift + x * np.cos(slant) - y * np.sin(slant), y * np.cos(slant) + x * np.sin(slant), tile
        )
        return canvas * random.uniform(0.7, 1.0), 0.0
    top = int(horizon * size)
    away = 0.55 / (y[top:] - horizon + 0.3)
    ground = floor(random, shift + 5 + (x[top:] - 0.5) * away * 1.6 + slant * away, away * 2.2, tile)
    ground = ground * (0.75 + 0.25 * smooth_step(horizon, horizon + 0.35, y[top:]))
    canvas = np.array(np.broadcast_to(wall(random, x, y, tile), (3, size, size)))
    edge = smooth_step(horizon - 0.004, horizon + 0.012, y[top:])
    canvas[:, top:] = mix(canvas[:, top:] * 0.9, ground, edge)
    return canvas, horizon


def draw_light(random: np.random.Generator) -> Light:
    """Draw a key light from above, left or right, a little warm or cool, and an ambient light."""
    side = random.uniform(0.25, 0.75) * random.choice([-1.0, 1.0])
    direction = np.array([side, random.uniform(0.5, 0.9), random.uniform(0.5, 0.9)], np.float32)
    warm = random.uniform(-0.06, 0.06)
    tint = np.array([1 + warm, 1.0, 1 - warm], np.float32).reshape(3, 1, 1)
    strength = random.uniform(0.85, 1.05)
    return Light(direction / np.linalg.norm(direction), tint * strength, random.uniform(0.2, 0.32))


def cast_shadow(canvas: np.ndarray, light: Light, *, x: float, y: float, radius: float, horizon: float) -> None:
    """Cast a soft shadow of an object of `radius` at (x, y) on `canvas`, in place; it is darkest at the contact."""
    size = canvas.shape[-1]
    steps = (np.arange(size, dtype=np.float32) + 0.5) / size
    low, flat = (0.86, 0.34) if horizon else (0.22, 1.0)
    lean = -light.direction[0] * radius * (0.75 if horizon else 0.35)
    for spread, depth, offset in ((1.15, 0.5, lean), (0.75, 0.45, lean * 0.25)):
        across = np.square((steps - x - offset) / (radius * spread))
        down = np.square((steps - y - radius * low) / (radius * spread * flat))
        distance = across[None, :] + down[:, None]
        dark = depth * np.exp(-distance * distance)
        if horizon:
            dark *= smooth_step(horizon - 0.01, horizon + 0.03, steps)[:, None]
        canvas *= 1 - dark
