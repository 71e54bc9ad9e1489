// A curve of any length: points are appended, and few are drawn per pixel.
// Modules of this folder are joined in the order that live_widget.py names.

const { abs, floor, max, min, round } = Math, { isFinite: isNumber } = Number;
const BLOCKS = [16, 256, 4096]; // sizes of blocks whose minimum and maximum are stored

class Series {
  constructor() {
    this.n = 0;
    this.x = new Float64Array(256);
    this.y = new Float64Array(256);
    this.gaps = []; // indices where y is not a number: the line breaks
    this.blocks = BLOCKS.map((size) => ({ size, ends: [] })); // indices, two a block
    this.smooth = { weight: 0, n: 0, y: new Float64Array(0), last: 0, norm: 1 };
  }

  push(x, y) {
    const i = this.n;
    if (i === this.x.length) {
      for (const name of ["x", "y"]) {
        const grown = new Float64Array(2 * i);
        grown.set(this[name]);
        this[name] = grown;
      }
    }
    this.x[i] = x;
    this.y[i] = y;
    this.n = i + 1;
    if (!isNumber(y)) this.gaps.push(i);
    for (const block of this.blocks) {
      if (this.n % block.size === 0) this.close(block);
    }
  }

  close(block) {
    const { y, n } = this;
    let low = -1, high = -1;
    for (let i = n - block.size; i < n; i++) {
      if (!isNumber(y[i])) continue;
      if (low < 0 || y[i] < y[low]) low = i;
      if (high < 0 || y[i] > y[high]) high = i;
    }
    block.ends.push(min(low, high), max(low, high));
  }

  // The first index whose x is not smaller.
  at(x) {
    let low = 0, high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.x[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  nearest(x) {
    const i = this.at(x);
    if (i === this.n) return i - 1;
    return i > 0 && x - this.x[i - 1] < this.x[i] - x ? i - 1 : i;
  }

  // Indices between i and j, with the minimum and maximum of every block among them.
  ends(i, j, width) {
    const indices = [];
    const take = (from, to) => {
      for (let k = from; k < to; k++) if (isNumber(this.y[k])) indices.push(k);
    };
    const block = this.blocks.filter(({ size }) => (j - i) / size >= width).pop();
    if (!block || j - i <= 4 * width) {
      take(i, j);
      return indices;
    }
    const first = floor(i / block.size);
    const last = min(floor(j / block.size), block.ends.length / 2);
    for (let b = first; b < last; b++) {
      const [low, high] = [block.ends[2 * b], block.ends[2 * b + 1]];
      if (low < 0) continue;
      indices.push(low);
      if (high !== low) indices.push(high);
    }
    take(max(i, last * block.size), j);
    return indices;
  }

  // At most `width` indices that keep the shape of the curve: Steinarsson's largest triangle
  // three buckets, over the result of `ends`.
  thin(i, j, width) {
    const all = this.ends(i, j, width);
    if (all.length <= width || width < 3) return all;
    const { x, y } = this;
    const chosen = [all[0]];
    const every = (all.length - 2) / (width - 2);
    let before = all[0];
    for (let k = 0; k < width - 2; k++) {
      const from = 1 + floor(k * every), to = 1 + floor((k + 1) * every);
      const end = min(1 + floor((k + 2) * every), all.length);
      let mx = 0, my = 0;
      for (let m = to; m < end; m++) { mx += x[all[m]]; my += y[all[m]]; }
      const count = max(1, end - to);
      if (end > to) { mx /= count; my /= count; } else { mx = x[all.at(-1)]; my = y[all.at(-1)]; }
      let best = all[from], most = -1;
      for (let m = from; m < to; m++) {
        const p = all[m];
        const area = abs(
          (x[before] - mx) * (y[p] - y[before]) - (x[before] - x[p]) * (my - y[before]),
        );
        if (area > most) { most = area; best = p; }
      }
      chosen.push(best);
      before = best;
    }
    chosen.push(all.at(-1));
    return chosen;
  }

  // An exponential mean as in TensorBoard, without bias at the start; extended as points arrive.
  smoothed(weight) {
    const smooth = this.smooth;
    if (smooth.weight !== weight) Object.assign(smooth, { weight, n: 0, last: 0, norm: 1 });
    if (smooth.y.length < this.n) {
      const grown = new Float64Array(this.x.length);
      grown.set(smooth.y);
      smooth.y = grown;
    }
    for (let i = smooth.n; i < this.n; i++) {
      if (!isNumber(this.y[i])) { smooth.y[i] = NaN; continue; }
      smooth.last = weight * smooth.last + (1 - weight) * this.y[i];
      smooth.norm *= weight;
      smooth.y[i] = smooth.last / (1 - smooth.norm);
    }
    smooth.n = this.n;
    return smooth.y;
  }
}

// Numbers of an axis: 1, 2 or 5 times a power of ten, within the limits.
function ticks(low, high, most) {
  const span = high - low;
  if (!(span > 0) || !isNumber(span)) return [low];
  const least = span / max(1, most), power = 10 ** floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= least * (1 - 1e-9));
  const values = [];
  for (let k = Math.ceil(low / step - 1e-6); k * step <= high + 1e-6 * step; k++) {
    values.push(Number((k * step).toPrecision(12)));
  }
  return values;
}

// Powers of ten; 2 and 5 times them where the range is small.
function logTicks(low, high) {
  const values = [];
  for (let p = floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) {
    for (const k of high / low < 100 ? [1, 2, 5] : [1]) {
      const value = k * 10 ** p;
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) values.push(value);
    }
  }
  return values.length ? values : [low];
}

const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

// Format a number on an axis.
function short(value) {
  const size = abs(value);
  for (const [least, sign] of UNITS) {
    if (size >= least) return `${Number((value / least).toPrecision(7))}${sign}`.replace("-", "−");
  }
  if (size && size < 1e-3) return value.toExponential(1).replace("e-", "e−").replace(/\.0e/, "e");
  return `${Number(value.toPrecision(5))}`.replace("-", "−");
}

// Format a number at the pointer.
function exact(value) {
  if (!isNumber(value)) return "no number";
  const size = abs(value);
  if (size >= 1000) return round(value).toLocaleString("en-US");
  if (size && size < 1e-3) return value.toExponential(2);
  return `${Number(value.toPrecision(4))}`;
}
