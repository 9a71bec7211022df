// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

namespace lockstep::testing {

/// For RunOptions::rank_env: the hosts of the ranks. In the layout "hierarchical_<n>_<m>" the first n ranks
/// are on one host and the next m on another; and so on for more numbers. The hosts have networks of their
/// own if networks.sh runs the tests. Empty for the name of a backend.
std::map<int, std::map<std::string, std::string>> hosts_of(const std::string& layout, int ranks);

/// The backend of a layout, or the name itself.
std::string backend_of(const std::string& layout);

}  // namespace lockstep::testing
