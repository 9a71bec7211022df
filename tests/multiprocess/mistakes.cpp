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

void expect_readable(const std::string& err) {
  EXPECT_LE(std::ranges::count(err, '\n'), kMostLines);
  for (const char* stack : {"frame #", "Exception raised from", "C++ CapturedTraceback", "libtorch"})
    EXPECT_EQ(err.find(stack), std::string::npos) << "a C++ stack";
}

void expect_texts(const std::string& err, const std::vector<std::string>& texts) {
  for (const auto& text : texts) EXPECT_NE(err.find(text), std::string::npos) << "missing: " << text;
}

void expect_place(const std::string& err, const std::string& file) {
  EXPECT_TRUE(std::regex_search(err, std::regex(file + ":[0-9]+"))) << "no line of " << file;
}

void expect_report(const Reported& reported, const RankResult& result, std::size_t rank,
                   const std::string& file) {
  SCOPED_TRACE(fmt::format("rank {}", rank));
  const auto own = rank == 0 ? reported.on_rank0 : rank == 1 ? reported.on_rank1 : std::vector<std::string>{};
  EXPECT_FALSE(result.timed_out);
  expect_readable(result.err);
  expect_texts(result.err, reported.on_all);
  expect_texts(result.err, own);
  const bool speaks = !reported.on_all.empty() || !own.empty();
  if (speaks && reported.place == Place::source_line) expect_place(result.err, file);
  if (failed(result)) expect_texts(result.err, {fmt::format("rank {}", rank)});
}

void expect_reports(const Reported& reported, const std::vector<RankResult>& results,
                    const std::string& file) {
  std::string all;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    expect_report(reported, results[rank], rank, file);
    all += results[rank].err;
  }
  EXPECT_EQ(std::ranges::any_of(results, failed), reported.ending == Ending::fails);
  for (const auto& text : reported.once) EXPECT_EQ(count(all, text), 1) << "not once: " << text;
  if (::testing::Test::HasFailure()) ADD_FAILURE() << shown(results);
}

class MistakeTest : public ::testing::Test {
 public:
  MistakeTest(const Scenario& program, const Reported& reported, std::string file)
      : program_(program), reported_(reported), file_(std::move(file)) {}

  void TestBody() override {
    const auto results = run_ranks(
        program_, {.world_size = reported_.world_size, .env = reported_.env, .rank_env = reported_.rank_env});
    expect_reports(reported_, results, file_);
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
