// SPDX-License-Identifier: BSD-3-Clause
#include "multiprocess/mistakes.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <sys/resource.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace lockstep::testing {
namespace {

constexpr std::ptrdiff_t kMostLines = 15;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

bool failed(const RankResult& result) { return result.exit_code != 0; }

std::string shown(const std::vector<RankResult>& results) {
  std::string text;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    text += fmt::format("---- rank {}, exit code {}, signal {}{}:\n{}", rank, results[rank].exit_code,
                        results[rank].signal, results[rank].timed_out ? ", killed by the watchdog" : "",
                        results[rank].err);
  }
  return text;
}

// What is wrong with the reports, a line each.
class Faults {
 public:
  explicit Faults(std::string subject) : subject_(std::move(subject)) {}

  void expect(bool holds, const std::string& fault) {
    if (!holds) text_ += fmt::format("{}: {}\n", subject_, fault);
  }
  void expect_texts(const std::string& err, const std::vector<std::string>& texts) {
    for (const auto& text : texts) expect(err.find(text) != std::string::npos, "no \"" + text + "\"");
  }
  const std::string& text() const { return text_; }

 private:
  std::string subject_;
  std::string text_;
};

std::string faults_of(const Reported& reported, const RankResult& result, std::size_t rank,
                      const std::string& file) {
  const auto own = rank == 0 ? reported.on_rank0 : rank == 1 ? reported.on_rank1 : std::vector<std::string>{};
  const auto& err = result.err;
  Faults faults(fmt::format("rank {}", rank));
  faults.expect(!result.timed_out, "killed by the watchdog");
  faults.expect(std::ranges::count(err, '\n') <= kMostLines, "more than 15 lines");
  for (const char* stack : {"frame #", "Exception raised from", "C++ CapturedTraceback", "libtorch"})
    faults.expect(err.find(stack) == std::string::npos, "a C++ stack");
  faults.expect_texts(err, reported.on_all);
  faults.expect_texts(err, own);
  const bool speaks = !reported.on_all.empty() || !own.empty();
  if (speaks && reported.place == Place::source_line)
    faults.expect(std::regex_search(err, std::regex(file + ":[0-9]+")), "no line of " + file);
  faults.expect(result.out.find(reported.printed) != std::string::npos, "lost what it had printed");
  const bool renamed = reported.rank_env.contains(static_cast<int>(rank));
  if (failed(result) && !renamed)
    faults.expect(std::regex_search(err, std::regex(fmt::format("rank {0}|RANK={0}", rank))), "no rank");
  return faults.text();
}

std::string faults_of(const Reported& reported, const std::vector<RankResult>& results,
                      const std::string& file) {
  std::string text, all;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    text += faults_of(reported, results[rank], rank, file);
    all += results[rank].err;
  }
  Faults faults("all ranks");
  faults.expect(std::ranges::any_of(results, failed) == (reported.ending == Ending::fails), "another ending");
  for (const auto& once : reported.once) faults.expect(count(all, once) == 1, "not once \"" + once + "\"");
  return text + faults.text();
}

class MistakeTest : public ::testing::Test {
 public:
  MistakeTest(const Scenario& program, const Reported& reported, std::string file)
      : program_(program), reported_(reported), file_(std::move(file)) {}

  void TestBody() override {
    const auto results = run_ranks(
        program_, {.world_size = reported_.world_size, .env = reported_.env, .rank_env = reported_.rank_env});
    const auto faults = faults_of(reported_, results, file_);
    EXPECT_EQ(faults, "") << shown(results);
  }

 private:
  Scenario program_;
  Reported reported_;
  std::string file_;
};

void run_without_core_dump(const std::function<void()>& program) {
  const rlimit none{};
  ::setrlimit(RLIMIT_CORE, &none);
  program();
}

}  // namespace

Mistake::Mistake(std::string name, Reported reported, std::function<void()> program,
                 std::source_location where) {
  const Scenario scenario(
      "mistake: " + name, [program = std::move(program)] { run_without_core_dump(program); },
      Thrown::leaves_main);
  const auto file = std::filesystem::path(where.file_name()).filename().string();
  ::testing::RegisterTest(
      "Mistakes", name.c_str(), nullptr, nullptr, where.file_name(), static_cast<int>(where.line()),
      [scenario, reported = std::move(reported), file] { return new MistakeTest(scenario, reported, file); });
}

}  // namespace lockstep::testing
