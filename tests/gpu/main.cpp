// SPDX-License-Identifier: BSD-3-Clause
// <program> list; <program> <name>: one check, as one of its ranks where `lockstep run` started it.
#include <iostream>
#include <stdexcept>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "gpu/check.h"

namespace lockstep::gpu {

void require(bool holds, const std::string& what, std::source_location where) {
  if (holds) return;
  throw std::runtime_error(fmt::format("{}:{}: not so: {}", where.file_name(), where.line(), what));
}

void require_error(const std::function<void()>& action, const std::string& part, std::source_location where) {
  try {
    action();
  } catch (const Error& error) {
    return require(std::string(error.what()).find(part) != std::string::npos,
                   fmt::format("the message has \"{}\": {}", part, error.what()), where);
  }
  require(false, fmt::format("an error with \"{}\" is thrown", part), where);
}

namespace {

int list() {
  for (const auto& check : all_checks()) {
    std::cout << fmt::format("{} {} {} {}\n", check.name, check.ranks, check.gpus, check.what);
  }
  return 0;
}

int run(const std::string& name) {
  for (const auto& check : all_checks()) {
    if (check.name != name) continue;
    check.run();
    return 0;
  }
  throw std::runtime_error(fmt::format("there is no check \"{}\"; the argument list names them", name));
}

}  // namespace
}  // namespace lockstep::gpu

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("give one argument: list, or the name of a check");
    return std::string(argv[1]) == "list" ? lockstep::gpu::list() : lockstep::gpu::run(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
