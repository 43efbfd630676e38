"use strict";
(() => {
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const theme = () => {
    const ink = style("--ink"), quiet = style("--quiet"), line = style("--line");
    const axis = {
      gridcolor: line, linecolor: line, zerolinecolor: line, tickfont: { color: quiet },
      title: { font: { color: quiet, size: 12 }, standoff: 8 }, automargin: true,
    };
    return {
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
        margin: { l: 8, r: 8, t: 26, b: 8 }, xaxis: axis, yaxis: axis,
        legend: {
          orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal",
          font: { color: quiet },
        },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: style("--accent") },
        hoverlabel: { bgcolor: style("--card"), bordercolor: line, font: { color: ink } },
        shapedefaults: { label: { font: { color: quiet } } },
      },
    };
  };

  const config = {
    responsive: true, displaylogo: false,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };

  const plots = [...document.querySelectorAll(".plot")].map((div) => ({
    div, spec: JSON.parse(document.getElementById(div.dataset.spec).textContent),
  }));

  const draw = () => {
    const template = theme();
    for (const { div, spec } of plots) {
      Plotly.react(div, spec.data, { ...structuredClone(spec.layout), template }, config);
    }
  };

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  document.documentElement.dataset.drawn = String(plots.length);
})();
