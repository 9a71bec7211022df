// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>

#include <lockstep/base/env.h>

namespace lockstep::launch {

/// Throws ArgumentError when `name` is none of "default", "tuned", "jemalloc" and "tcmalloc".
void check_allocator(const std::string& name);

/// The variables that make a rank allocate memory in this way, on top of `inherited`:
///
/// - default: as the system and lockstep::init() do.
/// - tuned: the C library's allocator, set to keep what was freed instead of giving it back to the system,
/// large
///   tensors included, so that each step finds its memory in place. Costs memory: freed tensors of one size
///   are not there for other programs.
/// - jemalloc, tcmalloc: that library, by LD_PRELOAD. Throws LaunchError naming the package where it is not
///   installed.
///
/// PyTorch: --enable-jemalloc and --enable-tcmalloc of torch.backends.xeon.run_cpu.
std::map<std::string, std::string> allocator_environment(const std::string& name, const Env& inherited);

}  // namespace lockstep::launch
