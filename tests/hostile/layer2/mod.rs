//! What a program in a pod reaches with raw frames, whatever their addresses and contents.

mod frames;
mod reserved;
