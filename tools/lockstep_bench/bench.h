// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/rendezvous/init.h>

#include "kinds.h"
#include "measure.h"
#include "memory_limit.h"
#include "options.h"
#include "report.h"

namespace lockstep::bench {

/// One rank's part of `lockstep bench`.
class Bench {
 public:
  /// All ranks make it, with the same options. `cores`: those that the ranks of this host may use.
  Bench(const Options& options, const Context& context, int cores);

  /// Measures everything that was asked for; rank 0 prints it.
  void run();

 private:
  std::vector<Contender> contenders(const Kind& kind, const std::string& dtype, std::int64_t count) const;
  void measure(const Kind& kind, const std::string& dtype, std::size_t bytes);
  bool carries(const std::string& backend, const std::string& memory) const;
  void say(const std::string& text) const;

  const Options& options_;
  const Context& context_;
  Sync sync_;  ///< by the context's group: not one of those that are measured
  std::map<std::string, ProcessGroup> groups_;
  std::optional<MemoryLimit> memory_limit_;
  Report report_;
};

}  // namespace lockstep::bench
