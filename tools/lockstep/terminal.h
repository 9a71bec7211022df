// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "top_page.h"

namespace lockstep::cli {

// A key of the keyboard, or a character: Key('q').
enum class Key : int { none = -1, up = 0x1000, down, page_up, page_down, escape };

// The whole terminal, by ncurses, from the constructor to the destructor, which restores it.
class Terminal {
 public:
  // Throws Error with the remedy: not a terminal, a type that is not known, no ncurses.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::size_t width() const;
  std::size_t height() const;
  void draw(const std::vector<ScreenLine>& lines);
  // The next key that was pressed, without waiting. Takes notice of a new size.
  Key key();

 private:
  struct Screen;
  std::unique_ptr<Screen> screen_;
};

}  // namespace lockstep::cli
