// A terminal's whole screen, redrawn repeatedly without flicker, and restored after Ctrl-C, on SIGTERM, and while it is
// stopped by Ctrl-Z.
#pragma once

#include <signal.h>
#include <termios.h>

#include <string>
#include <vector>

#include "io/base/file.h"

namespace tri {

struct ScreenSize {
  int columns = 80, lines = 24;
};

enum class ScreenEvent {
  kTick,    // the time has passed
  kResize,  // it has another size, or was away
  kQuit,    // q, Ctrl-C or Ctrl-D
};

// The only one of its process, whose signals it takes while it lives.
class Screen {
 public:
  static bool possible();  // whether standard input and output are a terminal that can move its cursor

  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  ScreenSize size() const;
  // The screen's lines from its top; what does not fit is cut off on the right and below.
  void show(const std::vector<std::string>& lines);
  // Ends the process as SIGTERM and SIGHUP do, once the terminal is restored.
  ScreenEvent wait(double seconds);

 private:
  void enter();
  void leave();

  termios before_{};
  Descriptor signals_;
  sigset_t mask_before_{};
};

}  // namespace tri
