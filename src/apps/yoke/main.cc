#include "apps/yoke/command_line.h"

int main(int argc, char** argv) { return yoke::run_command_line({argv + 1, argv + argc}); }
