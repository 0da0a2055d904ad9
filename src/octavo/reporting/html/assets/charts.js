// Charts by ECharts. Tooltips are drawn on the canvas, so that no name becomes markup.

const charts = [];
const HIGHEST = 70; // dB; beyond, two tensors differ by float's own rounding

function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(['text', 'muted', 'line', 'card', 'sunken', 'accent', 'a', 'b', 'c', 'd', 'e', 'f', 'band', 'good', 'fair', 'poor'].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const font = () => getComputedStyle(document.body).fontFamily;

function chart(label, option, { low = false, onclick = null } = {}) {
  const node = el('div', { class: low ? 'chart low' : 'chart', role: 'img', 'aria-label': label });
  const entry = { node, option, chart: null };
  entry.draw = () => {
    if (!node.isConnected || !node.clientWidth) return;
    if (!entry.chart) {
      entry.chart = echarts.init(node, null, { renderer: 'canvas' });
      if (onclick) entry.chart.on('click', onclick);
      new ResizeObserver(() => entry.chart.resize()).observe(node);
    }
    entry.chart.resize(); // the page may have another width on paper
    entry.chart.setOption(entry.option(colours()), { notMerge: true });
  };
  charts.push(entry);
  near.observe(node);
  return entry;
}

// Charts are drawn when they come near the window, all of them before printing.
const near = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    const entry = charts.find((one) => one.node === target);
    if (entry && !entry.chart) entry.draw();
  }
}, { rootMargin: '600px' });

function drawCharts(all = false) {
  for (const entry of charts) if (all || entry.chart) entry.draw();
}

function base(c) {
  return {
    animation: false,
    textStyle: { fontFamily: font(), color: c.text },
    grid: { left: 12, right: 18, top: 58, bottom: 30, outerBoundsMode: 'same', outerBoundsContain: 'axisLabel' },
    tooltip: {
      trigger: 'item', renderMode: 'richText', confine: true, backgroundColor: c.card, borderColor: c.line,
      textStyle: { color: c.text, fontFamily: font(), fontSize: 12 },
    },
    legend: { type: 'scroll', top: 2, left: 'center', pageTextStyle: { color: c.muted }, itemWidth: 20, itemHeight: 9, itemGap: 18, textStyle: { color: c.text }, inactiveColor: c.muted },
  };
}

function axis(c, more) {
  return {
    axisLine: { lineStyle: { color: c.line } }, axisTick: { lineStyle: { color: c.line } },
    axisLabel: { color: c.muted }, splitLine: { lineStyle: { color: c.line, opacity: 0.6 } },
    nameTextStyle: { color: c.muted }, ...more,
  };
}

const tone = (c, side) => c[side.letter.toLowerCase()] || c.a;
const tag = (side, text) => (side.letter ? `${side.letter}: ${text}` : text);

// What a point of the chart stands for: two series a side.
function depthPoint(sides, { seriesIndex, dataIndex }) {
  const side = sides[seriesIndex >> 1];
  return { side, row: side.depth[dataIndex] };
}

// Places along the depth: a tensor that two sides share stands at the same place.
function depthPlaces(sides) {
  const longest = sides.reduce((one, other) => (other.depth.length > one.depth.length ? other : one));
  const shared = new Map(longest.depth.map((row, index) => [row.tensor, index]));
  return sides.map((side) => {
    let last = -1;
    return side.depth.map((row) => { last = shared.has(row.tensor) ? shared.get(row.tensor) : last + 1; return last; });
  });
}

function depthOption(sides) {
  return (c) => {
    const series = [];
    const places = depthPlaces(sides);
    for (const [number, side] of sides.entries()) {
      const point = (kind) => side.depth.map((row, index) => {
        const value = row[kind] ? row[kind].sqnr : null;
        return [places[number][index], known(value) && value < EXACT ? Math.min(value, HIGHEST) : null];
      });
      const colour = tone(c, side);
      series.push({
        name: tag(side, 'model up to here'), type: 'line', data: point('total'), symbol: 'circle', symbolSize: 4, showSymbol: side.depth.length < 400,
        lineStyle: { width: 2, color: colour }, itemStyle: { color: colour }, connectNulls: true,
      }, {
        name: tag(side, 'operator alone'), type: 'scatter', data: point('local'), symbol: ['diamond', 'triangle', 'rect', 'pin', 'arrow', 'roundRect'][number % 6], symbolSize: 8,
        itemStyle: { color: 'transparent', borderColor: colour, borderWidth: 1.4 }, emphasis: { itemStyle: { color: colour } },
      });
    }
    const length = Math.max(...sides.map((side) => side.depth.length));
    return {
      ...base(c),
      grid: { ...base(c).grid, bottom: 64 },
      xAxis: axis(c, { type: 'value', min: 0, max: Math.max(1, length - 1), minInterval: 1, name: 'operators, in the order of the network', nameLocation: 'middle', nameGap: 26, splitLine: { show: false } }),
      yAxis: axis(c, { type: 'value', scale: true, name: 'SQNR, dB (higher is better)', nameLocation: 'end', nameTextStyle: { color: c.muted, align: 'left' } }),
      dataZoom: [
        { type: 'slider', height: 18, bottom: 6, borderColor: c.line, fillerColor: 'rgba(120,140,190,.18)', textStyle: { color: c.muted }, dataBackground: { lineStyle: { color: c.line }, areaStyle: { color: c.line } }, labelFormatter: (value) => String(Math.round(value)) },
        { type: 'inside', zoomOnMouseWheel: 'ctrl', moveOnMouseWheel: false },
      ],
      tooltip: {
        ...base(c).tooltip,
        formatter: (item) => {
          const { row, side } = depthPoint(sides, item);
          return [
            tag(side, `${row.op}  ${short(row.node || row.tensor, 64)}`),
            `operator alone: ${decibels(row.local && row.local.sqnr)} dB`,
            `model up to here: ${decibels(row.total && row.total.sqnr)} dB`,
          ].join('\n');
        },
      },
      series,
    };
  };
}

function histogramOption(tensor, side, logarithmic) {
  const { low, width, counts } = tensor.histogram;
  const height = (count) => (logarithmic ? Math.log10(1 + count) : count);
  const points = counts.map((count, index) => [low + index * width, height(count)]);
  points.push([low + counts.length * width, 0]);
  const total = counts.reduce((sum, count) => sum + count, 0);
  return (c) => {
    const colour = tone(c, side);
    const edges = [low, low + counts.length * width, ...(tensor.range || [])];
    const [least, most] = [Math.min(...edges), Math.max(...edges)];
    const pad = 0.03 * (most - least || 1);
    const marks = tensor.range ? {
      markArea: { silent: true, itemStyle: { color: c.band, opacity: 0.1 }, data: [[{ xAxis: tensor.range[0] }, { xAxis: tensor.range[1] }]] },
      markLine: {
        silent: true, symbol: 'none', lineStyle: { color: c.band, type: 'dashed', width: 1.5 },
        label: { formatter: ({ value }) => compact(value), color: c.text, fontSize: 11, distance: 4 }, data: tensor.range.map((value) => ({ xAxis: value })),
      },
    } : {};
    return {
      ...base(c), legend: { show: false }, grid: { ...base(c).grid, top: 36 },
      xAxis: axis(c, { type: 'value', min: least - pad, max: most + pad, axisLabel: { color: c.muted, formatter: compact, showMinLabel: false, showMaxLabel: false, hideOverlap: true }, splitLine: { show: false } }),
      yAxis: axis(c, { type: 'value', min: 0, axisLabel: { color: c.muted, formatter: (value) => (logarithmic ? (Number.isInteger(value) ? `1e${value}` : '') : compact(value)) }, name: logarithmic ? 'values (log)' : 'values', nameTextStyle: { color: c.muted, align: 'left' } }),
      tooltip: {
        ...base(c).tooltip, trigger: 'axis', axisPointer: { type: 'line', lineStyle: { color: c.muted } },
        formatter: ([item]) => {
          const count = counts[item.dataIndex] || 0;
          const start = low + item.dataIndex * width;
          return `${compact(start)} … ${compact(start + width)}\n${count} values (${share(count / total)})`;
        },
      },
      series: [{ type: 'line', step: 'end', data: points, symbol: 'none', lineStyle: { width: 1.2, color: colour }, itemStyle: { color: colour }, areaStyle: { color: colour, opacity: 0.35, origin: 'start' }, ...marks }],
    };
  };
}

function timesOption(bench, names) {
  const tables = bench.models.map((model) => new Map(model.ops.map((op) => [op.op_type, op])));
  const most = (name) => Math.max(...tables.map((ops) => (ops.get(name) || { seconds: 0 }).seconds));
  const types = [...new Set(bench.models.flatMap((model) => model.ops.map((op) => op.op_type)))].sort((a, b) => most(b) - most(a)).slice(0, 12).reverse();
  return (c) => ({
    ...base(c),
    xAxis: axis(c, { type: 'value', axisLabel: { color: c.muted, formatter: duration, hideOverlap: true } }),
    yAxis: axis(c, { type: 'category', data: types.map((type) => short(type, 28)), axisLabel: { color: c.text } }),
    tooltip: { ...base(c).tooltip, formatter: (item) => `${item.name}, ${item.seriesName}\n${duration(item.value)}` },
    series: tables.map((ops, index) => ({
      name: names[index], type: 'bar', data: types.map((type) => (ops.get(type) || { seconds: 0 }).seconds),
      itemStyle: { color: tables.length > 1 && index === 0 ? c.muted : c.a }, barMaxWidth: 14,
    })),
  });
}
