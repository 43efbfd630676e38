"use strict";
// Shows the text of the nearest point under the mouse, and dims the other series.
const tip = document.createElement("div");
tip.className = "tip";
document.body.append(tip);

for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg");
  const { points, byX } = JSON.parse(figure.querySelector("script").textContent);
  const series = svg.querySelectorAll("[id*='-series-']");

  const nearest = (x, y, reach) => {
    let best = null, least = reach;
    for (const point of points) {
      const distance = byX ? Math.abs(point[0] - x) : Math.hypot(point[0] - x, point[1] - y);
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  };

  const show = (event) => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    const found = nearest(x, y, 30 * scale);
    if (!found) return hide();
    const texts = byX ? points.filter((point) => point[0] === found[0]) : [found];
    tip.textContent = texts.map((point) => point[2]).join("\n");
    tip.style.display = "block";
    const left = box.left + found[0] / scale + 14;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.min(left, room)}px`;
    tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 10)}px`;
    for (const group of series) {
      group.classList.toggle("dim", !byX && !group.id.includes(`-series-${found[3]}-`));
    }
  };

  const hide = () => {
    tip.style.display = "none";
    for (const group of series) group.classList.remove("dim");
  };

  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}
