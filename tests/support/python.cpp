// SPDX-License-Identifier: BSD-3-Clause
#include "support/python.h"

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/deadline.h"
#include "support/fork_server.h"

namespace lockstep::testing {
namespace {

std::vector<std::string> words_of(const std::string& path, const PythonOptions& options) {
  std::vector<std::string> words{path, std::to_string(options.args.size())};
  words.insert(words.end(), options.args.begin(), options.args.end());
  for (const auto& [name, value] : options.env) words.push_back(fmt::format("{}={}", name, value));
  return words;
}

// A Python that has imported PyTorch, which takes seconds.
std::unique_ptr<ForkServer> python_server() {
  return std::make_unique<ForkServer>([](int socket) {
    ::setenv("OMP_NUM_THREADS", "1", 0);
    const auto path = fmt::format("{}/support/python_server.py", LOCKSTEP_TESTS_FOLDER);
    ::execl(LOCKSTEP_PYTHON, LOCKSTEP_PYTHON, path.c_str(), std::to_string(socket).c_str(),
            static_cast<char*>(nullptr));
  });
}

}  // namespace

std::string run_python(const std::string& script, const PythonOptions& options) {
  static std::unique_ptr<ForkServer> server;
  if (!server) server = python_server();
  const std::string path = fmt::format("{}/{}", LOCKSTEP_TESTS_FOLDER, script);
  const Deadline deadline(options.timeout);
  ChildResult result;
  try {
    result = server->finish(server->start(words_of(path, options)), deadline);
  } catch (...) {
    server.reset();
    throw;
  }
  if (result.timed_out) server.reset();  // with what the script has forked
  if (!result.timed_out && WIFEXITED(result.status) && WEXITSTATUS(result.status) == 0) return result.out;
  const auto how = result.timed_out             ? "was killed by the watchdog"
                   : WIFSIGNALED(result.status) ? "was ended by a signal"
                                                : "failed";
  throw std::runtime_error(fmt::format("{} {} {} (status {}); its stderr:\n{}", LOCKSTEP_PYTHON, path, how,
                                       result.status, result.err));
}

}  // namespace lockstep::testing
