// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <lockstep/pipelining/schedule.h>

#include "base/text.h"
#include "base/throw_error.h"
#include "pipelining/plan_walk.h"

namespace lockstep::pipelining {
namespace {

// In the order of ComputationType.
constexpr std::array<std::string_view, 12> kNames{"F",       "I",      "W",           "UNSHARD",
                                                  "RESHARD", "SEND_F", "RECV_F",      "SEND_B",
                                                  "RECV_B",  "B",      "OVERLAP_F_B", "REDUCE_GRAD"};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const auto first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

[[noreturn]] void refuse_action(std::string_view text) {
  throw_error<ArgumentError>(
      "action \"{}\": expected [stage][action][micro-batch], e.g. 2F0, 1SEND_F3, 0UNSHARD or "
      "(0F1;3B0)OVERLAP_F_B",
      text);
}

Action parse_parts(std::string_view text) {
  const auto end = text.find(')');
  if (end == std::string_view::npos || text.substr(end + 1) != "OVERLAP_F_B") refuse_action(text);
  Action action{.computation_type = ComputationType::OVERLAP_F_B};
  for (const auto& part : split(text.substr(1, end - 1), ';'))
    action.sub_actions.push_back(Action::from_str(part));
  if (action.sub_actions.empty()) refuse_action(text);
  return action;
}

}  // namespace

std::string Action::str() const {
  std::string text;
  if (sub_actions.empty()) {
    text = std::to_string(stage_index);
  } else {
    for (const auto& part : sub_actions) {
      text += text.empty() ? '(' : ';';
      text += part.str();
    }
    text += ')';
  }
  text += kNames.at(static_cast<std::size_t>(computation_type));
  if (microbatch_index) text += std::to_string(*microbatch_index);
  return text;
}

Action Action::from_str(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('(')) return parse_parts(text);
  constexpr std::string_view kDigits = "0123456789";
  const auto name_at = std::min(text.find_first_not_of(kDigits), text.size());
  const auto name_end = text.find_last_not_of(kDigits) + 1;
  if (name_at == 0 || name_at >= name_end) refuse_action(text);
  const auto name = std::find(kNames.begin(), kNames.end(), text.substr(name_at, name_end - name_at));
  const auto stage = parse_number<int>(text.substr(0, name_at));
  const auto microbatch = parse_number<int>(text.substr(name_end));
  if (name == kNames.end() || !stage || (name_end < text.size() && !microbatch)) refuse_action(text);
  const auto type = static_cast<ComputationType>(name - kNames.begin());
  if (type == ComputationType::OVERLAP_F_B || has_microbatch(type) != microbatch.has_value())
    refuse_action(text);
  return {.stage_index = *stage, .computation_type = type, .microbatch_index = microbatch};
}

bool Action::is_compute_op() const {
  using enum ComputationType;
  return computation_type == FORWARD || computation_type == FULL_BACKWARD ||
         computation_type == BACKWARD_INPUT || computation_type == BACKWARD_WEIGHT ||
         computation_type == OVERLAP_F_B;
}

namespace {

// The fields of a line, also a last empty one.
std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (std::size_t begin = 0;;) {
    const auto end = line.find(',', begin);
    fields.push_back(line.substr(begin, end - begin));
    if (end == std::string_view::npos) return fields;
    begin = end + 1;
  }
}

// Such as 3WAIT_SEND_F0.
bool is_wait(std::string_view field) {
  constexpr std::string_view kDigits = "0123456789";
  const auto begin = std::min(field.find_first_not_of(kDigits), field.size());
  const auto end = field.find_last_not_of(kDigits) + 1;
  if (begin == 0 || begin >= end) return false;
  const auto name = field.substr(begin, end - begin);
  return end == field.size() ? name == "WAIT_REDUCE_GRAD" : name == "WAIT_SEND_F" || name == "WAIT_SEND_B";
}

void widen(Plan& plan, const Action& action) {
  for (const auto& part : action.sub_actions) widen(plan, part);
  plan.num_stages = std::max(plan.num_stages, action.stage_index + 1);
  plan.n_microbatches = std::max(plan.n_microbatches, action.microbatch_index.value_or(-1) + 1);
}

}  // namespace

Plan plan_from_csv(std::string_view csv) {
  Plan plan;
  for (const auto& line : split(csv, '\n')) {
    auto& actions = plan.pipeline_order.emplace_back();
    int column = 0;
    for (auto field : fields_of(trimmed(line))) {
      ++column;
      field = trimmed(field);
      // Python's writer quotes a line of one empty field.
      if (field.size() > 1 && field.front() == '"' && field.back() == '"')
        field = field.substr(1, field.size() - 2);
      if (is_wait(field)) continue;
      actions.emplace_back();
      if (field.empty()) continue;
      try {
        actions.back() = Action::from_str(field);
      } catch (const ArgumentError& error) {
        throw_error<ArgumentError>("plan_from_csv: line {}, column {}: {}", plan.pipeline_order.size(),
                                   column, error.what());
      }
      widen(plan, *actions.back());
    }
  }
  if (plan.num_stages == 0) throw_error<ArgumentError>("plan_from_csv: the text has no actions");
  return plan;
}

std::string to_csv(const Plan& plan) {
  std::string csv;
  for (const auto& actions : plan.pipeline_order) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) csv += ',';
      if (actions[i]) csv += actions[i]->str();
    }
    csv += "\r\n";
  }
  return csv;
}

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
