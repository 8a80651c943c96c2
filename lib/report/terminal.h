// A terminal's whole screen, redrawn repeatedly without flicker, and restored after Ctrl-C, on SIGTERM, and while
// Ctrl-Z has stopped the process.
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
  kKey,     // another key was pressed: key()
  kQuit,    // q, Ctrl-C or Ctrl-D
};

// There may be one per process; it handles the process' signals while it exists.
class Screen {
 public:
  static bool possible();  // whether standard input and output are a terminal that can move its cursor

  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  ScreenSize size() const;
  // Shows the lines from the top of the screen; cuts off what does not fit on the right and below.
  void show(const std::vector<std::string>& lines);
  // Waits for an event. On SIGTERM and SIGHUP restores the terminal, then ends the process as those signals do.
  ScreenEvent wait(double seconds);
  char key() const { return key_; }  // of the last kKey

 private:
  void enter();
  void leave();

  termios before_{};
  Descriptor signals_;
  sigset_t mask_before_{};
  char key_ = 0;
};

}  // namespace tri
