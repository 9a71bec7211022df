// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

namespace lockstep::launch {

/// `text` with each ${name} that `values` knows replaced by its value; others stay as they are. PyTorch:
/// string.Template.safe_substitute, in torch.distributed.elastic.utils.macros and log prefixes.
std::string filled_in(const std::string& text, const std::map<std::string, std::string>& values);

}  // namespace lockstep::launch
