// SPDX-License-Identifier: BSD-3-Clause
#include "terminal.h"

#include <cstdio>
#include <cstdlib>
#include <unistd.h>

// Functions only: macros cannot be looked up in a library that is loaded.
#define NCURSES_NOMACROS
#include <curses.h>

#include <lockstep/base/error.h>

#include "base/shared_library.h"
#include "base/throw_error.h"

namespace lockstep::cli {
namespace {

constexpr short kAlarmColours = 1;
constexpr int kEscapeDelay = 25;  // milliseconds in which the rest of a key's characters comes

SharedLibrary load_ncurses() {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0)
    throw Error("lockstep top needs a terminal; `lockstep top --once` prints to a file or a pipe");
  return {"ncurses", {"libncursesw.so.6"}, "libncursesw6"};
}

}  // namespace

// The functions of ncurses that we call, and its screen.
struct Terminal::Screen {
  SharedLibrary library = load_ncurses();
  decltype(&::newterm) newterm = library["newterm"];
  decltype(&::delscreen) delscreen = library["delscreen"];
  decltype(&::endwin) endwin = library["endwin"];
  decltype(&::cbreak) cbreak = library["cbreak"];
  decltype(&::noecho) noecho = library["noecho"];
  decltype(&::nonl) nonl = library["nonl"];
  decltype(&::keypad) keypad = library["keypad"];
  decltype(&::nodelay) nodelay = library["nodelay"];
  decltype(&::curs_set) curs_set = library["curs_set"];
  decltype(&::set_escdelay) set_escdelay = library["set_escdelay"];
  decltype(&::has_colors) has_colors = library["has_colors"];
  decltype(&::start_color) start_color = library["start_color"];
  decltype(&::use_default_colors) use_default_colors = library["use_default_colors"];
  decltype(&::init_pair) init_pair = library["init_pair"];
  decltype(&::COLOR_PAIR) color_pair = library["COLOR_PAIR"];
  decltype(&::getmaxx) getmaxx = library["getmaxx"];
  decltype(&::getmaxy) getmaxy = library["getmaxy"];
  decltype(&::werase) werase = library["werase"];
  decltype(&::wmove) wmove = library["wmove"];
  decltype(&::wattrset) wattrset = library["wattrset"];
  decltype(&::waddnstr) waddnstr = library["waddnstr"];
  decltype(&::wrefresh) wrefresh = library["wrefresh"];
  decltype(&::wgetch) wgetch = library["wgetch"];
  WINDOW** window = library["stdscr"];
  SCREEN* screen = nullptr;
  bool has_alarm_colours = false;

  Screen() {
    screen = newterm(nullptr, stdout, stdin);
    if (screen == nullptr) {
      const char* const type = std::getenv("TERM");
      throw_error<Error>(
          "the terminal type TERM={} is not known here: set TERM to a known one such as xterm, or use `lockstep top --once`",
          type == nullptr ? "" : type);
    }
    cbreak();
    noecho();
    nonl();
    keypad(*window, TRUE);
    nodelay(*window, TRUE);
    curs_set(0);
    set_escdelay(kEscapeDelay);
    has_alarm_colours = has_colors() && start_color() == OK && use_default_colors() == OK &&
                        init_pair(kAlarmColours, COLOR_RED, -1) == OK;
  }

  int attributes_of(Look look) const {
    switch (look) {
      case Look::heading:
        return static_cast<int>(A_REVERSE);
      case Look::alarm:
        return static_cast<int>(A_BOLD) | (has_alarm_colours ? color_pair(kAlarmColours) : 0);
      case Look::picked:
        return static_cast<int>(A_BOLD);
      case Look::plain:
        break;
    }
    return static_cast<int>(A_NORMAL);
  }
};

Terminal::Terminal() : screen_(std::make_unique<Screen>()) {}

Terminal::~Terminal() {
  screen_->endwin();
  screen_->delscreen(screen_->screen);
}

std::size_t Terminal::width() const { return static_cast<std::size_t>(screen_->getmaxx(*screen_->window)); }

std::size_t Terminal::height() const { return static_cast<std::size_t>(screen_->getmaxy(*screen_->window)); }

void Terminal::draw(const std::vector<ScreenLine>& lines) {
  auto* const window = *screen_->window;
  screen_->werase(window);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    screen_->wmove(window, static_cast<int>(i), 0);
    screen_->wattrset(window, screen_->attributes_of(lines[i].look));
    screen_->waddnstr(window, lines[i].text.c_str(), -1);
  }
  screen_->wattrset(window, static_cast<int>(A_NORMAL));
  screen_->wrefresh(window);
}

Key Terminal::key() {
  switch (const int code = screen_->wgetch(*screen_->window)) {
    case ERR:
      return Key::none;
    case KEY_UP:
      return Key::up;
    case KEY_DOWN:
      return Key::down;
    case KEY_PPAGE:
      return Key::page_up;
    case KEY_NPAGE:
      return Key::page_down;
    case 27:
      return Key::escape;
    default:
      return Key(code);
  }
}

}  // namespace lockstep::cli
