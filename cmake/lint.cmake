# Target `lint`: clang-format and clang-tidy over what changed since the last run; every finding is fatal.
# Files that include libtorch are formatted but not tidied: clang-tidy takes a minute for each.
add_custom_target(lint COMMAND ${PROJECT_SOURCE_DIR}/scripts/lint ${CMAKE_BINARY_DIR} VERBATIM)
