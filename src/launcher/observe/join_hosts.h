// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "observe/run.h"

namespace lockstep::observe {

// The runs of several hosts, read at about the same moment, as one. Their clocks differ: times become those of the
// first host's clock, with the age that they had where they were read. A rank that several hosts have read is that
// of the first one that knows it alive. Groups of different hosts that have one name get that of their host, too:
// what ranks publish of a group is on one host.
Run join_hosts(std::vector<Run> runs);

}  // namespace lockstep::observe
