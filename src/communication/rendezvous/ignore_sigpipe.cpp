// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/ignore_sigpipe.h"

#include <csignal>

namespace lockstep::rendezvous {
namespace {

bool is_handled_by(void (*handler)(int)) {
  struct sigaction now {};
  ::sigaction(SIGPIPE, nullptr, &now);
  return (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == handler;
}

void handle_by(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace

IgnoreSigpipe::IgnoreSigpipe() : was_default_(is_handled_by(SIG_DFL)) {
  if (was_default_) handle_by(SIG_IGN);
}

IgnoreSigpipe::~IgnoreSigpipe() {
  if (was_default_ && is_handled_by(SIG_IGN)) handle_by(SIG_DFL);
}

}  // namespace lockstep::rendezvous
