"use strict";
// Pixels in, translated pixels out. It is started from a blob, and so has the page's Content-Security-Policy.

const SMALLEST = 8;  // pixels of a side that any of the networks can take
let runtime = null, by = "";
const sessions = {};

async function start(base, only) {
  const adapter = only !== "wasm" && self.navigator.gpu ? await navigator.gpu.requestAdapter().catch(() => null) : null;
  by = adapter ? "webgpu" : "wasm";
  runtime = await import(`${base}ort.${by}.bundle.min.mjs`);
  runtime.env.wasm.wasmPaths = { wasm: `${base}ort-wasm-simd-threaded${adapter ? ".asyncify" : ""}.wasm` };
  runtime.env.wasm.numThreads = 1;  // more would need headers that many hosts do not send
  runtime.env.logLevel = "error";
}

async function load(base, way) {
  const answer = await fetch(base + way.file);
  if (!answer.ok) throw new Error(`${way.file} cannot be loaded: the host answered ${answer.status}`);
  return runtime.InferenceSession.create(await answer.arrayBuffer(), { executionProviders: [by] });
}

function mirrored(wanted, length) {
  const period = Math.max(2 * (length - 1), 1);
  return Int32Array.from({ length: wanted }, (_, at) => length > 1 ? Math.min(at % period, period - at % period) : 0);
}

function toNetwork(rgba, width, height, way) {
  const [wide, high] = [width, height].map((side) => Math.max(Math.ceil(side / way.multiple) * way.multiple, SMALLEST));
  const columns = mirrored(wide, width), rows = mirrored(high, height), area = wide * high;
  const values = new Float32Array(way.in * area);
  for (let y = 0, to = 0; y < high; y++) {
    for (let x = 0; x < wide; x++, to++) {
      const from = 4 * (rows[y] * width + columns[x]);
      if (way.in === 1) {
        values[to] = ((rgba[from] * 19595 + rgba[from + 1] * 38470 + rgba[from + 2] * 7471 + 32768) >> 16) / 127.5 - 1;
      } else {
        for (let channel = 0; channel < 3; channel++) values[channel * area + to] = rgba[from + channel] / 127.5 - 1;
      }
    }
  }
  return new runtime.Tensor("float32", values, [1, way.in, high, wide]);
}

function toPixels(made, rgba, width, height, way) {
  const [, , high, wide] = made.dims, area = wide * high, result = new Uint8ClampedArray(rgba.length);
  for (let y = 0, to = 0; y < height; y++) {
    for (let x = 0; x < width; x++, to += 4) {
      for (let channel = 0; channel < 3; channel++) {
        result[to + channel] = (made.data[(way.out === 1 ? 0 : channel * area) + y * wide + x] + 1) * 127.5;
      }
      result[to + 3] = rgba[to + 3];
    }
  }
  return result;
}

self.onmessage = async ({ data: { base, only, way, rgba, width, height } }) => {
  try {
    if (!runtime) await start(base, only);
    const session = await (sessions[way.file] ??= load(base, way));
    const { translated } = await session.run({ image: toNetwork(rgba, width, height, way) });
    const result = toPixels(translated, rgba, width, height, way);
    translated.dispose();
    self.postMessage({ result, by }, [result.buffer]);
  } catch (error) {
    self.postMessage({ error: String(error && error.message || error) });
  }
};
