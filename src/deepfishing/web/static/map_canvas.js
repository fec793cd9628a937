// Many points on a plane: drawn by WebGL 2, or by the 2D canvas where that is missing.
//
// Places are in [0, 1] x [0, 1]. The camera has the place in the middle of the canvas and a zoom; at
// zoom 1 the whole plane fits.

const MARGIN = 0.94; // of the shorter side that the plane takes at zoom 1
const CELLS = 256; // per side, of the grid in which the nearest point is looked up
const MAX_ZOOM = 400;

const VERTEX = `#version 300 es
in vec2 place;
in float code;
in float dim;
uniform vec2 centre;
uniform vec2 scale;
uniform float size;
uniform float pass_;
out float code_;
out float dim_;
void main() {
  bool drawn = abs(dim - pass_) < 0.5;
  gl_Position = drawn ? vec4((place - centre) * scale, 0.0, 1.0) : vec4(9.0, 9.0, 9.0, 1.0);
  gl_PointSize = size;
  code_ = code;
  dim_ = dim;
}`;

const FRAGMENT = `#version 300 es
precision mediump float;
in float code_;
in float dim_;
uniform sampler2D palette;
out vec4 colour;
void main() {
  float away = length(gl_PointCoord - 0.5);
  float cover = 1.0 - smoothstep(0.38, 0.5, away);
  vec4 tone = texture(palette, vec2((code_ + 0.5) / 256.0, 0.5));
  float alpha = tone.a * cover * (dim_ > 0.5 ? 0.13 : 1.0);
  colour = vec4(tone.rgb * alpha, alpha);
}`;

export class MapCanvas {
  constructor(canvas, { renderer = "webgl2" } = {}) {
    this.canvas = canvas;
    this.camera = { x: 0.5, y: 0.5, zoom: 1 };
    this.n = 0;
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.painter = (renderer === "webgl2" && makeWebGL(canvas)) || new Flat(canvas);
    canvas.dataset.renderer = this.painter.name;
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => {
      this.painter.start();
      this.fill();
      this.draw();
    });
  }

  // Places (2n numbers up to 65,535), and for each point a colour of the palette.
  setPoints(places) {
    this.places = places;
    this.n = places.length / 2;
    this.codes = new Uint8Array(this.n);
    this.dims = new Uint8Array(this.n);
    this.index();
    this.fill();
  }

  setCodes(codes, palette) {
    this.codes = codes;
    this.palette = palette;
    this.fill();
  }

  setDims(dims) {
    this.dims = dims;
    this.fill();
  }

  fill() {
    if (this.n && this.palette) this.painter.fill(this.places, this.codes, this.dims, this.palette);
  }

  // Points by cell, so that the nearest one is found at once.
  index() {
    const counts = new Uint32Array(CELLS * CELLS + 1);
    const cell = (i) => Math.min(CELLS - 1, (this.places[2 * i] * CELLS) >> 16) + CELLS * Math.min(CELLS - 1, (this.places[2 * i + 1] * CELLS) >> 16);
    for (let i = 0; i < this.n; i += 1) counts[cell(i) + 1] += 1;
    for (let c = 0; c < CELLS * CELLS; c += 1) counts[c + 1] += counts[c];
    this.starts = counts.slice();
    this.order = new Uint32Array(this.n);
    for (let i = 0; i < this.n; i += 1) this.order[counts[cell(i)]++] = i;
  }

  resize() {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    const [wide, high] = [Math.round(this.width * this.ratio), Math.round(this.height * this.ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) Object.assign(this.canvas, { width: wide, height: high });
  }

  get scale() {
    return Math.min(this.width, this.height) * MARGIN * this.camera.zoom; // CSS pixels per unit
  }

  toScreen(x, y) {
    return [this.width / 2 + (x - this.camera.x) * this.scale, this.height / 2 + (y - this.camera.y) * this.scale];
  }

  toPlace(left, top) {
    return [this.camera.x + (left - this.width / 2) / this.scale, this.camera.y + (top - this.height / 2) / this.scale];
  }

  // Zoom so that the place below a pixel stays there.
  zoomAt(left, top, factor) {
    const [x, y] = this.toPlace(left, top);
    this.camera.zoom = Math.min(MAX_ZOOM, Math.max(0.5, this.camera.zoom * factor));
    const [to, down] = this.toPlace(left, top);
    this.camera.x += x - to;
    this.camera.y += y - down;
  }

  pan(right, down) {
    this.camera.x -= right / this.scale;
    this.camera.y -= down / this.scale;
  }

  whole() {
    this.camera = { x: 0.5, y: 0.5, zoom: 1 };
  }

  get pointSize() {
    const usual = Math.min(9, Math.max(2.2, 260 / Math.sqrt(this.n + 1)));
    return Math.min(16, usual * Math.max(1, this.camera.zoom ** 0.4));
  }

  draw() {
    if (!this.width) this.resize();
    if (this.n && this.palette) this.painter.draw(this);
  }

  // The number of the point nearest to a pixel, of those that are not dim; null beyond `reach`.
  nearest(left, top, reach = 14) {
    if (!this.n) return null;
    const [x, y] = this.toPlace(left, top);
    const around = reach / this.scale;
    const clamp = (value) => Math.min(CELLS - 1, Math.max(0, Math.floor(value * CELLS)));
    let best = null;
    let least = around * around;
    for (let row = clamp(y - around); row <= clamp(y + around); row += 1) {
      const first = this.starts[row * CELLS + clamp(x - around)];
      const last = this.starts[row * CELLS + clamp(x + around) + 1];
      for (let at = first; at < last; at += 1) {
        const i = this.order[at];
        const gap = (this.places[2 * i] / 65535 - x) ** 2 + (this.places[2 * i + 1] / 65535 - y) ** 2;
        if (gap < least && !this.dims[i]) [best, least] = [i, gap];
      }
    }
    return best;
  }
}

function makeWebGL(canvas) {
  const gl = canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: true });
  return gl ? new Accelerated(gl) : null;
}

class Accelerated {
  constructor(gl) {
    this.gl = gl;
    this.name = "webgl2";
    this.start();
  }

  start() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(`The map cannot be drawn: ${gl.getProgramInfoLog(program)}`);
    gl.useProgram(program);
    this.uniforms = Object.fromEntries(["centre", "scale", "size", "pass_"].map((name) => [name, gl.getUniformLocation(program, name)]));
    gl.bindVertexArray(gl.createVertexArray());
    this.buffers = {};
    const attributes = { place: [2, gl.UNSIGNED_SHORT, true], code: [1, gl.UNSIGNED_BYTE, false], dim: [1, gl.UNSIGNED_BYTE, false] };
    for (const [name, [size, kind, normalised]] of Object.entries(attributes)) {
      this.buffers[name] = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      const where = gl.getAttribLocation(program, name);
      gl.enableVertexAttribArray(where);
      gl.vertexAttribPointer(where, size, kind, normalised, 0, 0);
    }
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  fill(places, codes, dims, palette) {
    const { gl } = this;
    for (const [name, values] of Object.entries({ place: places, code: codes, dim: dims })) {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    }
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, palette);
    this.hasDim = dims.some(Boolean);
  }

  draw({ canvas, camera, scale, width, height, ratio, pointSize, n }) {
    const { gl, uniforms } = this;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(uniforms.centre, camera.x, camera.y);
    gl.uniform2f(uniforms.scale, (2 * scale) / width, (-2 * scale) / height);
    gl.uniform1f(uniforms.size, pointSize * ratio);
    for (const dim of this.hasDim ? [1, 0] : [0]) {
      gl.uniform1f(uniforms.pass_, dim);
      gl.drawArrays(gl.POINTS, 0, n);
    }
  }
}

class Flat {
  constructor(canvas) {
    this.name = "2d";
    this.context = canvas.getContext("2d");
  }

  start() {}

  fill(places, codes, dims, palette) {
    Object.assign(this, { places, codes, dims, palette });
  }

  draw({ canvas, camera, scale, width, height, ratio, pointSize, n }) {
    const { context, places, codes, dims, palette } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const half = pointSize / 2;
    for (const dim of [1, 0]) {
      context.globalAlpha = dim ? 0.13 : 1;
      let last = -1;
      for (let i = 0; i < n; i += 1) {
        if (dims[i] !== dim) continue;
        const left = width / 2 + (places[2 * i] / 65535 - camera.x) * scale;
        const top = height / 2 + (places[2 * i + 1] / 65535 - camera.y) * scale;
        if (left < -half || top < -half || left > width + half || top > height + half) continue;
        if (codes[i] !== last) {
          last = codes[i];
          context.fillStyle = `rgb(${palette[4 * last]} ${palette[4 * last + 1]} ${palette[4 * last + 2]} / ${palette[4 * last + 3] / 255})`;
        }
        context.fillRect(left - half, top - half, pointSize, pointSize);
      }
    }
    context.globalAlpha = 1;
  }
}
