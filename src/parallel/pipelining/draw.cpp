// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>

#include <lockstep/pipelining/schedule.h>

namespace lockstep::pipelining {
namespace {

constexpr double kRow = 28, kLeftMargin = 70, kTopMargin = 10;

// A hue for each kind of action, paler for stages further up.
std::string color_of(const Action& action, int num_stages) {
  using enum ComputationType;
  const auto type = action.computation_type;
  const int hue = type == FORWARD ? 215 : type == BACKWARD_WEIGHT ? 130 : type == BACKWARD_INPUT ? 30 : 5;
  return fmt::format("hsl({},65%,{}%)", hue, 55 + 30 * action.stage_index / std::max(1, num_stages));
}

}  // namespace

std::string draw_svg(const Timeline& timeline) {
  int ranks = 0, num_stages = 1;
  double shortest = timeline.step_time;
  for (const auto& each : timeline.actions) {
    ranks = std::max(ranks, each.rank + 1);
    num_stages = std::max(num_stages, each.action.stage_index + 1);
    if (each.end > each.start) shortest = std::min(shortest, each.end - each.start);
  }
  const double scale = shortest > 0 ? std::min(24 / shortest, 20000 / timeline.step_time) : 1;
  auto svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"11\">\n",
      kLeftMargin + scale * timeline.step_time + 10, kTopMargin + kRow * ranks + 24);
  for (int rank = 0; rank < ranks; ++rank)
    svg += fmt::format("<text x=\"8\" y=\"{:.0f}\">rank {}</text>\n", kTopMargin + kRow * rank + 17, rank);
  for (const auto& each : timeline.actions) {
    const double x = kLeftMargin + scale * each.start, y = kTopMargin + kRow * each.rank,
                 width = scale * (each.end - each.start);
    svg += fmt::format(
        "<g><title>{} from {:.6g} to {:.6g}</title><rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" "
        "height=\"{:.0f}\" fill=\"{}\" stroke=\"#444\" stroke-width=\"0.5\"/><text x=\"{:.2f}\" y=\"{:.0f}\" "
        "text-anchor=\"middle\">{}</text></g>\n",
        each.action.str(), each.start, each.end, x, y, width, kRow - 4, color_of(each.action, num_stages),
        x + width / 2, y + 16, *each.action.microbatch_index);
  }
  return svg + fmt::format("<text x=\"8\" y=\"{:.0f}\">step {:.6g}, idle {:.1f}%</text>\n</svg>\n",
                           kTopMargin + kRow * ranks + 14, timeline.step_time, 100 * timeline.idle_share);
}

}  // namespace lockstep::pipelining
