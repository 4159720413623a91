#include "core/base/error.h"

namespace yoke {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return 2;
    case ErrorKind::failed:
      return 1;
    case ErrorKind::environment:
      return 3;
    case ErrorKind::timeout:
      return 4;
    case ErrorKind::interrupted:
      return 130;
  }
  return 1;
}

}  // namespace yoke
