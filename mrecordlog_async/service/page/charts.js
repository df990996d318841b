// Curves and strips.
const svg = (name, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};
// Draws values, the newest at the right edge; returns the value at the top.
function draw(target, values, width, height) {
  const top = Math.max(...values, 1), left = width - values.length;
  const points = values.map((value, index) => `${left + index},${(height - 1 - value / top * (height - 3)).toFixed(1)}`).join(" ");
  const area = svg("polygon", { points: `${left},${height} ${points} ${width - 1},${height}` });
  target.replaceChildren(area, svg("polyline", { points }));
  return top;
}
function fill(target, cells) {
  target.replaceChildren(...cells.map(({ colour, kind, title }) => {
    const cell = document.createElement("i");
    if (colour) cell.style.background = colour;
    if (kind) cell.className = kind;
    cell.title = title;
    return cell;
  }));
}
const heat = (seconds) => `hsl(${Math.round(130 - 130 * Math.min(Math.max(Math.log10(seconds / 0.001) / 2, 0), 1))} 65% 48%)`;
$("key-fast").style.background = heat(0.001);
$("key-middle").style.background = heat(0.01);
$("key-slow").style.background = heat(0.1);
