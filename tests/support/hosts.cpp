// SPDX-License-Identifier: BSD-3-Clause
#include "support/hosts.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

#include "support/ranks.h"

namespace lockstep::testing {
namespace {

constexpr std::string_view kPrefix = "hierarchical_";

std::map<std::string, std::string> host(std::size_t index) {
  const char* const running = std::getenv("LOCKSTEP_TEST_NETWORKS");
  std::istringstream networks(running == nullptr ? "" : running);
  const std::vector<std::string> holders(std::istream_iterator<std::string>(networks), {});
  if (holders.empty()) return {{"GLOO_SOCKET_IFNAME", "lo"}, {"LOCKSTEP_HOST_ID", std::to_string(index)}};
  return {{kNetworkVariable, holders.at(index)}, {"MASTER_ADDR", "10.78.0.1"}};
}

bool is_layout(const std::string& backend) { return backend.starts_with(kPrefix); }

}  // namespace

std::map<int, std::map<std::string, std::string>> hosts_of(const std::string& layout, int ranks) {
  std::map<int, std::map<std::string, std::string>> environment;
  if (!is_layout(layout)) return environment;
  int rank = 0;
  for (std::size_t place = kPrefix.size(); place < layout.size(); place += 2) {
    for (const int end = rank + layout[place] - '0'; rank < std::min(end, ranks); ++rank)
      environment[rank] = host((place - kPrefix.size()) / 2);
  }
  return environment;
}

std::string backend_of(const std::string& layout) { return is_layout(layout) ? "hierarchical" : layout; }

}  // namespace lockstep::testing
