// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

namespace lockstep::testing {

/// Layouts of hierarchical: the ranks of "hierarchical_<n>_<m>" are on two hosts, n on the first one and m on
/// the second one; and so on for more numbers.
/// For RunOptions::rank_env: the ranks' hosts in a layout, which have networks of their own if networks.sh
/// runs the tests. Empty for the name of a backend.
std::map<int, std::map<std::string, std::string>> hosts_of(const std::string& layout, int ranks);

/// The backend of a layout, or the name itself.
std::string backend_of(const std::string& layout);

}  // namespace lockstep::testing
