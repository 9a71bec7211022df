// SPDX-License-Identifier: BSD-3-Clause
#include "modules/agreement.h"

#include <algorithm>
#include <sstream>

#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"

namespace lockstep::modules {

namespace {

// Buckets hold gradients in the memory order of the parameters.
std::string strides_of(const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided) return " (not strided)";
  return tensor.is_contiguous() ? "" : fmt::format(" strides [{}]", fmt::join(tensor.strides(), ", "));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string readable(const std::vector<std::string>& lines, std::size_t at) {
  if (at >= lines.size()) return "nothing";
  std::string line = lines[at];
  std::ranges::replace(line, '\t', ' ');
  return line;
}

// The first line in which some rank differs from rank 0.
struct Difference {
  int rank;
  std::string text;
};

Difference first_difference(const std::vector<std::string>& texts) {
  const auto reference = lines_of(texts.front());
  std::size_t earliest = std::string::npos;
  std::size_t culprit = 0;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const auto lines = lines_of(texts[rank]);
    const auto [left, right] = std::ranges::mismatch(reference, lines);
    const auto at = static_cast<std::size_t>(left - reference.begin());
    if ((left != reference.end() || right != lines.end()) && at < earliest) {
      earliest = at;
      culprit = rank;
    }
  }
  return {static_cast<int>(culprit),
          fmt::format("rank 0 has {}, rank {} has {}", readable(reference, earliest), culprit,
                      readable(lines_of(texts[culprit]), earliest))};
}

}  // namespace

std::string describe(const std::string& kind, const NamedTensor& item) {
  return fmt::format("{} {}\t{}[{}]{} on {}", kind, item.name, c10::toString(item.tensor.scalar_type()),
                     fmt::join(item.tensor.sizes(), ", "), strides_of(item.tensor),
                     c10::DeviceTypeName(item.tensor.device().type(), true));
}

void check_same_on_all_ranks(const ProcessGroup& group, const ModuleText& own, std::source_location where) {
  // The long texts are sent only if the hashes differ.
  const comm::CallSite site(where, "check that all ranks have the same module");
  const auto sums = group.all_gather_object(fmt::format("{:x}", std::hash<std::string>{}(own.lines)), where);
  if (std::ranges::all_of(sums, [&](const auto& sum) { return sum == sums.front(); })) return;
  const auto texts = group.all_gather_object(own.lines, where);
  const auto difference = first_difference(texts);
  throw_error<DesyncError>(comm::reporter_of(group), comm::about(group, {difference.rank}),
                           "{}: the ranks' modules differ: {}. {}", own.user, difference.text, own.advice);
}

void tell_failure(const std::vector<ProcessGroup>& groups, const char* user, const std::exception& reason,
                  std::source_location where) {
  const auto* const of_libtorch = dynamic_cast<const c10::Error*>(&reason);
  ModuleText why{.user = user,
                 .lines = fmt::format("an error: {}",
                                      of_libtorch ? of_libtorch->what_without_backtrace() : reason.what()),
                 .advice = ""};
  std::ranges::replace(why.lines, '\n', ' ');
  for (const auto& group : groups) {
    try {
      if (group.size() > 1 && !comm::has_python_ranks(group)) check_same_on_all_ranks(group, why, where);
    } catch (const Error&) {
      // Expected: others have no error, another one, or are not there.
    }
  }
}

}  // namespace lockstep::modules
