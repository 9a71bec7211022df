// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/rendezvous/init.h>

#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {

// The folder that a scenario writes its records to, and the backend that it uses.
std::string record_folder();
std::string parity_backend();

// Runs `body` as the rank that this process is, or, where threads were asked for, as all ranks.
void as_parity_ranks(const std::function<void(const Context&)>& body);

// The same training runs in Python, always over Gloo, and by a scenario here over `backend`. Each writes
// files of records, which are then compared.
class BothSides {
 public:
  // `backend`: "gloo", "shm", "mpi", a layout of hosts_of(), or "threads_gloo", "threads_shm" for ranks
  // that are threads of one process. `cases`: a line of name=value words for each; Python's script gets a
  // folder with them in its file `cases`.
  BothSides(const std::string& script, const Scenario& scenario, const std::vector<std::string>& cases,
            const std::string& backend, int world_size);

  const std::filesystem::path& python_folder() const { return python_; }
  const std::filesystem::path& our_folder() const { return ours_.path(); }
  std::string python_file(const std::string& name, int rank) const;
  std::string our_file(const std::string& name, int rank) const;

 private:
  std::filesystem::path python_;
  TempFolder ours_;
};

}  // namespace lockstep::testing
