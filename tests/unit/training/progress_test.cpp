// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>
#include <list>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/log.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/loader.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/training/progress.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Rows = std::vector<std::string>;

// A clock that the test advances.
struct FakeClock {
  std::shared_ptr<double> seconds = std::make_shared<double>(100);
  double operator()() const { return *seconds; }
  void advance(double by) const { *seconds += by; }
};

// A terminal, and what a person would see on it.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    int master = -1;
    int slave = -1;
    if (::openpty(&master, &slave, nullptr, nullptr, nullptr) != 0)
      throw std::runtime_error("openpty failed");
    master_.reset(master);
    slave_.reset(slave);
    resize(columns);
    ::setenv("TERM", "xterm", 1);
  }
  ~Terminal() {
    if (before_) {
      ::setenv("TERM", before_->c_str(), 1);
    } else {
      ::unsetenv("TERM");
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int fd() const { return slave_.get(); }
  void resize(unsigned short columns) const {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(slave_.get(), TIOCSWINSZ, &size);
  }

  // The rows without trailing spaces.
  Rows rows() {
    for (const char letter : read_all()) put(letter);
    Rows seen = rows_;
    for (auto& row : seen) row.resize(row.find_last_not_of(' ') + 1);
    while (!seen.empty() && seen.back().empty()) seen.pop_back();
    return seen;
  }

 private:
  std::string read_all() const {
    constexpr char mark = '\x05';  // the kernel passes bytes on in order, but not at once
    EXPECT_EQ(::write(slave_.get(), &mark, 1), 1);
    std::string text;
    char letter = 0;
    while (::read(master_.get(), &letter, 1) == 1 && letter != mark) text += letter;
    return text;
  }

  void put(char letter) {
    if (!sequence_.empty() || letter == '\x1b') {
      sequence_ += letter;
      if (std::isalpha(static_cast<unsigned char>(letter)) != 0) obey();
    } else if (letter == '\r') {
      column_ = 0;
    } else if (letter == '\n') {
      ++row_;
    } else {
      if (rows_.size() <= row_) rows_.resize(row_ + 1);
      auto& row = rows_[row_];
      if (row.size() <= column_) row.resize(column_ + 1, ' ');
      row[column_++] = letter;
    }
  }

  void obey() {
    if (sequence_ == "\x1b[J") {
      rows_.resize(std::min(rows_.size(), row_ + 1));
      if (row_ < rows_.size()) rows_[row_].resize(std::min(rows_[row_].size(), column_));
    } else if (sequence_.back() == 'A') {
      row_ -= std::stoul(sequence_.substr(2));
    } else {
      ADD_FAILURE() << "unknown sequence " << sequence_.substr(1);
    }
    sequence_.clear();
  }

  std::optional<std::string> before_ = Env().get("TERM");
  UniqueFd master_;
  UniqueFd slave_;
  Rows rows_;
  std::string sequence_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
};

// Reads back what was written, one element per write(2).
class PacketPipe {
 public:
  PacketPipe() {
    int ends[2];
    if (::pipe2(ends, O_DIRECT | O_NONBLOCK) != 0) throw std::runtime_error("pipe2 failed");
    out_.reset(ends[0]);
    in_.reset(ends[1]);
  }
  int fd() const { return in_.get(); }
  Rows writes() const {
    Rows packets;
    char buffer[4096];
    for (ssize_t size = 0; (size = ::read(out_.get(), buffer, sizeof(buffer))) > 0;) {
      packets.emplace_back(buffer, static_cast<std::size_t>(size));
    }
    return packets;
  }

 private:
  UniqueFd out_;
  UniqueFd in_;
};

TEST(Progress, IsAsWideAsTheTerminalIsNow) {
  Terminal terminal(61);
  const FakeClock clock;
  Progress bar({.desc = "train", .total = 4, .file = terminal.fd(), .clock = clock});
  EXPECT_THAT(terminal.rows(), ElementsAre("train:   0%|" + std::string(26, ' ') + "| 0/4 [00:00<?, ?it/s]"));
  clock.advance(0.5);
  bar.update();
  EXPECT_THAT(terminal.rows(),
              ElementsAre("train:  25%|####5" + std::string(13, ' ') + "| 1/4 [00:00<00:01,  2.00it/s]"));
  terminal.resize(51);
  clock.advance(0.5);
  bar.update();
  EXPECT_THAT(terminal.rows(), ElementsAre("train:  50%|####    | 2/4 [00:01<00:01,  2.00it/s]"));
  bar.set_description("val");
  bar.set_postfix({{"loss", 0.25}});
  bar.close();
  EXPECT_THAT(terminal.rows(), ElementsAre("val:  50%|5| 2/4 [00:01<00:01,  2.00it/s, loss=0.2"));
}

TEST(Progress, IsDrawnAtMostTenTimesASecond) {
  Terminal terminal(61);
  const FakeClock clock;
  Progress bar({.total = 100, .file = terminal.fd(), .clock = clock});
  for (int step = 1; step <= 99; ++step) {
    clock.advance(0.03);
    bar.update();
    // Every fourth step is the first after 0.1 seconds.
    EXPECT_THAT(terminal.rows().at(0), ::testing::HasSubstr(" " + std::to_string(step / 4 * 4) + "/100 "));
  }
  bar.close();
  EXPECT_THAT(terminal.rows().at(0), ::testing::HasSubstr("| 99/100 [00:02<00:00, 33.33it/s]"));
}

TEST(Progress, NestsBelowLinesOfTheLog) {
  Terminal terminal(61);
  const UniqueFd stderr_before(::dup(STDERR_FILENO));
  ::dup2(terminal.fd(), STDERR_FILENO);
  const FakeClock clock;
  const auto options = [&](const std::string& desc, bool leave) {
    return ProgressOptions{.desc = desc, .total = 2, .leave = leave, .clock = clock};
  };
  Rows both;
  Rows logged;
  Rows inner_done;
  {
    Progress outer(options("outer", true));
    {
      Progress inner(options("inner", false));
      both = terminal.rows();
      log(LogLevel::warning, "a line that is longer than the bars are, so that their rest would be seen");
      ProgressBar::write("written", terminal.fd());
      logged = terminal.rows();
    }
    inner_done = terminal.rows();
    Progress left(options("left", true));
    outer.update(2);
  }
  log(LogLevel::info, "after");
  ::dup2(stderr_before.get(), STDERR_FILENO);
  const std::string of_outer = "outer:   0%|" + std::string(26, ' ') + "| 0/2 [00:00<?, ?it/s]";
  const std::string of_inner = "inner:   0%|" + std::string(26, ' ') + "| 0/2 [00:00<?, ?it/s]";
  const std::string warning =
      "[lockstep] warning: a line that is longer than the bars are, so that their rest would be seen";
  EXPECT_THAT(both, ElementsAre(of_outer, of_inner));
  EXPECT_THAT(logged, ElementsAre(warning, "written", of_outer, of_inner));
  EXPECT_THAT(inner_done, ElementsAre(warning, "written", of_outer));
  EXPECT_THAT(
      terminal.rows(),
      ElementsAre(warning, "written", "left:   0%|" + std::string(27, ' ') + "| 0/2 [00:00<?, ?it/s]",
                  "outer: 100%|" + std::string(26, '#') + "| 2/2 [00:00<?, ?it/s]", "[lockstep] after"));
}

TEST(Progress, KeepsToItsLine) {
  Terminal terminal(31);
  Progress bar({.desc = "two\nlines\t", .file = terminal.fd(), .clock = FakeClock()});
  bar.set_postfix_str("\r\x1b[2J and more than there is room for");
  bar.close();
  EXPECT_THAT(terminal.rows(), ElementsAre("two lines : 0it [00:00, ?it/s,"));
}

TEST(Progress, WritesWholeLinesToAPipeNowAndThen) {
  const PacketPipe pipe;
  const FakeClock clock;
  Progress bar({.desc = "train", .total = 100, .file = pipe.fd(), .unit = "img", .clock = clock});
  EXPECT_THAT(pipe.writes(), IsEmpty());
  for (int step = 0; step < 50; ++step) {
    clock.advance(0.5);
    bar.update();
    bar.set_postfix({{"loss", step}, {"lr", 1e-4}});
  }
  EXPECT_THAT(pipe.writes(),
              ElementsAre("train:  20% 20/100 [00:10<00:40,  2.00img/s, loss=18, lr=0.0001]\n",
                          "train:  40% 40/100 [00:20<00:30,  2.00img/s, loss=38, lr=0.0001]\n"));
  bar.close();
  bar.close();
  bar.update(3);
  EXPECT_THAT(pipe.writes(),
              ElementsAre("train:  50% 50/100 [00:25<00:25,  2.00img/s, loss=49, lr=0.0001]\n"));
  EXPECT_EQ(bar.n(), 53);
}

TEST(Progress, EndsSilentlyWithoutLeave) {
  const PacketPipe pipe;
  { Progress bar({.leave = false, .file = pipe.fd()}); }
  { Progress bar({.file = pipe.fd(), .disable = true}); }
  EXPECT_THAT(pipe.writes(), IsEmpty());
}

TEST(Progress, CountsTheStepsOfARange) {
  const PacketPipe pipe;
  const ProgressOptions options{.file = pipe.fd(), .clock = FakeClock()};
  std::vector<int> numbers{1, 2, 3};
  for (auto& number : Progress(numbers, options)) number *= 2;
  EXPECT_THAT(numbers, ElementsAre(2, 4, 6));
  Progress bar(numbers, options);
  for (int pass = 0; pass < 2; ++pass) {
    for (const int number : bar) {
      if (number == 4 && pass == 0) break;
    }
  }
  EXPECT_THAT(pipe.writes(), ElementsAre("100% 3/3 [00:00<?, ?it/s]\n", "100% 3/3 [00:00<?, ?it/s]\n"));
  EXPECT_EQ(bar.total(), 3);
  for ([[maybe_unused]] const bool number : Progress(std::list<bool>(2), options)) continue;
  for ([[maybe_unused]] const int number : Progress(std::vector<int>(), options)) continue;
  EXPECT_THAT(pipe.writes(), ElementsAre("100% 2/2 [00:00<?, ?it/s]\n", "0it [00:00, ?it/s]\n"));
}

// As a loader of an iterable dataset.
struct OfUnknownSize : std::vector<int> {
  using std::vector<int>::vector;
  std::int64_t size() const { throw ArgumentError("unknown"); }
};

TEST(Progress, TakesARangeOfUnknownSize) {
  const PacketPipe pipe;
  for ([[maybe_unused]] const int number :
       Progress(OfUnknownSize(2), {.file = pipe.fd(), .clock = FakeClock()})) {
  }
  EXPECT_THAT(pipe.writes(), ElementsAre("2it [00:00, ?it/s]\n"));
}

TEST(Progress, TakesALoader) {
  const PacketPipe pipe;
  data::DataLoader loader(data::TensorDataset(torch::arange(10), torch::arange(10)), {.batch_size = 4});
  std::int64_t sum = 0;
  for (auto& [numbers, target] :
       Progress(loader, {.desc = "load", .file = pipe.fd(), .clock = FakeClock()})) {
    sum += (numbers + target).sum().item<std::int64_t>();
  }
  EXPECT_EQ(sum, 90);
  EXPECT_THAT(pipe.writes(), ElementsAre("load: 100% 3/3 [00:00<?, ?it/s]\n"));
}

TEST(Progress, ChecksItsOptions) {
  EXPECT_THAT(error_of<ArgumentError>([] { ProgressBar bar({.total = -1}); }),
              ::testing::HasSubstr("total (-1)"));
}

const Scenario averages("means of the numbers of a bar", [] {
  const auto context = init({.backend = "shm"});
  const PacketPipe pipe;
  const FakeClock clock;
  Progress bar({.total = 7, .file = pipe.fd(), .mininterval = 0, .average_every = 3, .clock = clock});
  for (int step = 0; step < 7; ++step) {
    clock.advance(1);
    bar.update();
    clock.advance(1);
    bar.set_postfix({{"loss", 10 * step + context.rank()}, {"rank", context.rank()}});
  }
  Rows shown;
  for (const auto& line : pipe.writes()) {
    if (const auto begin = line.find("loss"); begin != std::string::npos) shown.push_back(line.substr(begin));
  }
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  if (context.is_main_process()) {
    EXPECT_THAT(shown,
                ElementsAre("loss=0.5, rank=0.5]\n", "loss=30.5, rank=0.5]\n", "loss=60.5, rank=0.5]\n"));
  } else {
    EXPECT_THAT(shown, IsEmpty());
  }
  bar.set_postfix({});
  bar.set_postfix({});
  EXPECT_THAT(
      error_of<DesyncError>([&] {
        bar.set_postfix({{context.is_main_process() ? "a" : "b", 1}});
      }),
      ::testing::HasSubstr(context.is_main_process() ? "rank 0 passes the names 'a' and rank 1 passes 'b'"
                                                     : "rank 1 passes the names 'b' and rank 0 passes 'a'"));
});
TEST(Progress, ShowsMeansOverRanks) { expect_all_passed(run_ranks(averages)); }

}  // namespace
}  // namespace lockstep::testing
