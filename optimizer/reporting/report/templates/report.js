(function () {
  "use strict";
  var config = { responsive: false, displayModeBar: false };  // a window that narrows is not all that changes a width
  var isTouch = window.matchMedia && window.matchMedia("(pointer: coarse)").matches;
  var plots = Array.prototype.slice.call(document.querySelectorAll(".plot"));
  function draw(plot) {
    if (plot.dataset.drawn) { return; }
    plot.dataset.drawn = "yes";
    var figure = JSON.parse(document.getElementById(plot.dataset.chart).textContent);
    if (isTouch && !figure.layout.scene) { figure.layout.dragmode = false; }  // a finger scrolls the page
    Plotly.newPlot(plot, figure.data, figure.layout, config).then(function () { fit(plot); });
  }
  function fit(plot) {
    var width = plot.clientWidth;
    if (!plot.dataset.drawn || !width || !plot._fullLayout || printing || plot._fullLayout.width === width) { return; }
    Plotly.relayout(plot, { width: width });
  }
  var printing = false;
  if ("ResizeObserver" in window) {
    var sizes = new ResizeObserver(function (seen) {
      window.requestAnimationFrame(function () { seen.forEach(function (entry) { fit(entry.target); }); });
    });
    plots.forEach(function (plot) { sizes.observe(plot); });
  } else { window.addEventListener("resize", function () { plots.forEach(fit); }); }
  if ("IntersectionObserver" in window) {
    var observer = new IntersectionObserver(function (seen) {
      seen.forEach(function (entry) {
        if (entry.isIntersecting) { observer.unobserve(entry.target); draw(entry.target); }
      });
    }, { rootMargin: "600px" });
    plots.forEach(function (plot) { observer.observe(plot); });
  } else { plots.forEach(draw); }
  window.addEventListener("beforeprint", function () {
    printing = true;
    document.querySelectorAll("details").forEach(function (part) { part.open = true; });
    document.body.classList.add("printing");  // as wide as paper, so that charts can be fitted before it is laid out
    plots.forEach(draw);
    plots.forEach(function (plot) { Plotly.relayout(plot, { width: plot.clientWidth }); });
  });
  window.addEventListener("afterprint", function () {
    printing = false;
    document.body.classList.remove("printing");
    plots.forEach(fit);
  });
})();
