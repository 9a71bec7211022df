// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "top_table.h"

// The screen of `lockstep top` as lines, without a terminal.

namespace lockstep::cli {

// By which the ranks are ordered: their number, or the largest value first, the slowest rank for steps.
enum class Order : std::uint8_t { rank, steps, communication, data, memory };

enum class Panel : std::uint8_t { ranks, calls, stack, help };

struct View {
  std::size_t width = 80;
  std::size_t height = 24;
  Order order = Order::rank;
  int picked = 0;  // a rank's number
  Panel panel = Panel::ranks;
  std::size_t first = 0;  // the first line of the panel that is shown, if it is not that of the ranks
  std::vector<std::string> stack{};  // of the picked rank
};

enum class Look : std::uint8_t { plain, heading, alarm, picked };

struct ScreenLine {
  std::string text{};  // at most the view's width, printable
  Look look = Look::plain;
};

// Places in Run::ranks.
std::vector<std::size_t> ranks_in_order(const Snapshot& snapshot, Order order);

// At most the view's height of lines. `view.first` becomes smaller where less lines are left.
std::vector<ScreenLine> page_of(const Snapshot& snapshot, View& view);

}  // namespace lockstep::cli
