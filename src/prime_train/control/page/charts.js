"use strict";
// Draws the curves of one run with plotly. Texts in a plot are made here: none comes from a run.
const Charts = (() => {
  const PLOTS = [
    {title: "loss", curves: [["loss", "loss", "--one"], ["held_out", "held-out", "--two"]]},
    {title: "gradient norm", curves: [["grad_norm", "gradient norm", "--four"]]},
    {title: "throughput per second", curves: [["tokens_per_s", "throughput", "--three"]]},
    {title: "reward", curves: [["reward", "reward", "--one"]]},
    {title: "learning rate", curves: [["lr", "learning rate", "--two"]]},
  ];
  const drawn = new Map(); // title -> element

  let isLoading = false, waiting = null;
  /** plotly takes seconds to load, and the tables do not wait for it. */
  function load(parent, detail) {
    waiting = [parent, detail];
    if (isLoading) return;
    isLoading = true;
    const script = document.createElement("script");
    script.src = "/plotly.min.js";
    script.onload = () => draw(...waiting);
    script.onerror = () => { isLoading = false; };
    document.head.append(script);
  }

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function traces(plot, curves) {
    const found = [];
    for (const [key, name, shade] of plot.curves) {
      const curve = curves[key];
      if (!curve) continue;
      if (curve.low) {
        const edge = {x: curve.step, mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false};
        found.push({...edge, y: curve.low}, {...edge, y: curve.high, fill: "tonexty", fillcolor: color(shade) + "33"});
      }
      const mode = curve.step.length < 3 ? "markers" : "lines";
      found.push({x: curve.step, y: curve.value, name, mode, line: {color: color(shade), width: 1.6},
        marker: {color: color(shade)}, hovertemplate: "%{y:.5~g}"});
    }
    return found;
  }

  function lines(marks) {
    return marks.map((mark) => ({type: "line", xref: "x", yref: "paper", x0: mark.step, x1: mark.step, y0: 0, y1: 1,
      line: {color: color(mark.kind === "attempt" ? "--bad" : "--two"), width: 1.2, dash: mark.kind === "attempt" ? "dot" : "dash"}}));
  }

  /** Around a value that never changes; plotly would choose one below and one above it. */
  function flat(data) {
    const values = new Set(data.flatMap((trace) => trace.y)), [value] = values;
    return values.size === 1 && value ? {range: [Math.min(0, 2 * value), Math.max(0, 2 * value)]} : {};
  }

  function layout(plot, data, detail) {
    const axis = {gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--line")};
    return {
      title: {text: plot.title, font: {size: 13}, x: 0.01, y: 0.97}, margin: {l: 56, r: 12, t: 30, b: 30},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: color("--text"), size: 11},
      xaxis: {...axis, tickformat: ",.3~f"}, yaxis: {...axis, ...flat(data), exponentformat: "e"}, shapes: lines(detail.marks), hovermode: "x unified",
      hoverlabel: {bgcolor: color("--card")}, showlegend: plot.curves.length > 1, legend: {orientation: "h", x: 1, xanchor: "right", y: 1.16},
      uirevision: detail.name, // the zoom stays while values are added
    };
  }

  /** The element of a plot, in the page; the others of a row decide its width. */
  function place(parent, title, isWanted) {
    let element = drawn.get(title);
    if (!isWanted) {
      if (element) { Plotly.purge(element); element.remove(); drawn.delete(title); }
    } else if (!element) {
      element = document.createElement("div");
      element.className = "plot";
      element.dataset.plot = title;
      drawn.set(title, element);
      parent.append(element);
    }
    return element;
  }

  function draw(parent, detail) {
    if (typeof Plotly === "undefined") {
      if (Object.keys(detail.curves).length) load(parent, detail);
      return;
    }
    const plots = PLOTS.map((plot) => ({plot, data: traces(plot, detail.curves)}));
    for (const {plot, data} of plots) place(parent, plot.title, data.length > 0);
    for (const {plot, data} of plots) {
      if (!data.length) continue;
      Plotly.react(drawn.get(plot.title), data, layout(plot, data, detail), {displaylogo: false, responsive: true,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage"]});
    }
  }

  return {draw};
})();
